"""OpenVINO GenAI as a subject, step by step on a CPU."""
