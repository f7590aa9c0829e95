"""Files and objects of Stable-Baselines3 and sb3-contrib: models with their statistics, buffers, evaluations."""
