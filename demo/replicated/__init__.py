"""The demo of a replicated site: orders at three replicas that are killed in turn. `./run demo replicated` runs it."""
