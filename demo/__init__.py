"""The demo: a bookstore's orders survive the death of their app server, again and again. `./run demo` runs it."""
