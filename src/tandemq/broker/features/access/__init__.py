"""Users, signatures, and what each user may do."""
