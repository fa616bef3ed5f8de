"""The cases, topic by topic; each expectation is read off the tables of hw/net/README.md."""
