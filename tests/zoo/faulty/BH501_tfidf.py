from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split

vec = TfidfVectorizer()
X = vec.fit_transform(df["text"])
y = df["label"].values
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2)
