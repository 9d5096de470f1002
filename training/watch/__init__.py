"""A user's training program run under watch: what its steps, networks, losses and loaders really
do, told as findings.

record      findings, the places of the program they belong to, and who listens
patches     where torch is listened to
forwards    every call of a network: what it changes, makes and loads
modes       in which mode networks are trained and evaluated, what is frozen, and wrappers
gradients   optimizers, backward passes, clipping and scaling
adversaries networks that are trained against each other
opponents   in which direction such networks push scores
leaves      parameters in the graphs of losses, and which of them nothing moves
losses      what loss functions are given
operators   what single functions are given: reshapes and softmaxes
padding     masks of sequences, scores in which padding counts, and padding that is a real number
noise       noise that a network is to find in its input
balance     samplers and weights that both make up for rare classes
classes     weights of classes against their frequency
copies      copies of a trained network that are evaluated in its place
contrasts   rows of a batch against each other
updates     clipping, scaling, decay, states of optimizers, and how far weights move
recurrence  whether the gradient of a state goes from call to call
metrics     metrics of scikit-learn
orders      predictions in the order of a shuffling loader
loaders     how batches are drawn
spawned     processes that the program starts itself
streams     whether each worker gives all rows of a stream
rows        which rows were trained on and evaluated, and how they are scaled
near        held-out pictures that are copies of train pictures
windows     held-out windows beside train windows
frames      tables of pandas that are divided, and the sides that their rows went to
scopes      arrays that the program's variables hold, and which of them stand beside each other
origins     the table that the rows of an array were taken of, and where they stand in it
tables      which rows of which table were trained on and held out
divided     what such a table shows: persons on both sides, columns made of or chosen by labels
fitted      columns that were scaled, filled, turned or ranked by numbers of held-out rows
apart       rows that are trained on beside labels of other rows
series      windows, and the series that they were cut of
fits        transformers that learn from the labels of held-out rows
sets        data sets behind loaders: rows that both sides hold, and how they are drawn
scales      on which scale inputs and first scores are, and scores that are dropped
targets     labels outside what they may be, left out, never trained on, or in another order
sides       rows of training and of evaluations, for the other ranks
ranks       what ranks call and hold, and, in ranks_compared, how they differ
networks    whether rows mix, and whether a sequence sees its future
schedules   learning rates
kept        graphs and weights that are kept
main        the process that runs the program
"""
