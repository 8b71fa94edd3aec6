"""One file per version of the schema, never edited once released."""
