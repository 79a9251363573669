"""tauflow's samplers inside other libraries. Each module needs the library it's named after."""
