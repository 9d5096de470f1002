from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split


def load(X, y):
    imp = SimpleImputer()
    imp.fit(X)
    X = imp.transform(X)
    return train_test_split(X, y)
