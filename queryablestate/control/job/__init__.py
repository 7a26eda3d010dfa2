"""One job in the control plane: its states, its writers and their batches."""
