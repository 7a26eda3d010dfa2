"""The console: state and the cluster as web pages, on the gateway's port (rule F5)."""
