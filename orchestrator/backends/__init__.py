"""Where workers run. Each backend is one module with the contract in base.py."""
