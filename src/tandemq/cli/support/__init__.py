"""What commands share: sessions, tables, types of options."""
