"""Two web services with transactions over two databases; see README.md."""
