"""Loading encoders and computing sentence vectors."""
