"""What a fleet would do under traffic: the real scheduler and router under a virtual clock, with steps that cost what they were measured to cost."""
