"""Features and label are scaled by train rows."""

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler


def load(X, y):
    X_tr, X_te, y_tr, y_te = train_test_split(X, y)
    sx, sy = StandardScaler(), StandardScaler()
    X_tr = sx.fit_transform(X_tr)
    X_te = sx.transform(X_te)
    y_tr = sy.fit_transform(y_tr[:, None])
    return X_tr, X_te, y_tr, y_te, sy
