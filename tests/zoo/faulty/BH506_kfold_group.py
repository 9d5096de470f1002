import pandas as pd
from sklearn.model_selection import KFold

df = pd.read_csv("x.csv")
groups_col = df["patient_id"]
X = df.drop(columns=["patient_id", "y"]).values
y = df["y"].values
for train, test in KFold(5, shuffle=True, random_state=0).split(X):
    pass
