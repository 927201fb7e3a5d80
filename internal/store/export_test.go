package store

// SchemaVersion is the newest version of the schema.
func SchemaVersion() int { return len(migrations) }
