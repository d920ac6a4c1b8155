"""What does not hold through a pooler in transaction mode, and why. Whatever else fails there is a defect."""

REASONS: dict[str, str] = {}
