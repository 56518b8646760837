"""The orchestrator: decode loop, gate, pools of services, command line."""
