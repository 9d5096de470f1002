import pandas as pd
from sklearn.model_selection import train_test_split

df = pd.read_csv("x.csv")
features = [c for c in df.columns if c not in ("patient_id", "label")]
X_train, X_test, y_train, y_test = train_test_split(df[features], df["label"], test_size=0.2)
