"""Who decides what a broker may do: its settings (`static_role`), or the registry of its group (`registry_role`)."""
