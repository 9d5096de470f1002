import pandas as pd
from sklearn.model_selection import train_test_split


def load(p):
    df = pd.read_csv(p, parse_dates=["timestamp"])
    df = df.sort_values("timestamp")
    df["lag1"] = df["y"].shift(1)
    X = df[["lag1"]]
    return train_test_split(X, df["y"], test_size=0.2, shuffle=True)
