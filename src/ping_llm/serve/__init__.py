"""Answers over HTTP: one model thread behind a bounded queue. docs/serve.md describes the endpoints."""
