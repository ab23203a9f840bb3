from small_run import engine, model, rows, run, world

__all__ = ["engine", "model", "rows", "run", "world"]
