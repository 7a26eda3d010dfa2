"""How clients, writers and operators find the leading proxy and call it."""
