"""Hot-standby drivers: one of several leads, and the others are warm."""
