"""Words for directions, of which a turn or a mirror makes the opposite, and for what holds the names of classes."""

from __future__ import annotations

# Which words a turn exchanges: a mirror from left to right, one from top to bottom, any turn, and one of time alone.
ACROSS = [("left", "right"), ("leftward", "rightward"), ("leftwards", "rightwards"), ("west", "east"), ("westward", "eastward"), ("port", "starboard")]
UPSIDE = [("up", "down"), ("upward", "downward"), ("upwards", "downwards"), ("north", "south"), ("top", "bottom"), ("above", "below")]
EITHER = [
    *(("rising", "falling"), ("rise", "fall"), ("rises", "falls"), ("ascending", "descending"), ("ascend", "descend"), ("ascent", "descent")),
    *(("increasing", "decreasing"), ("increase", "decrease"), ("growing", "shrinking"), ("uphill", "downhill"), ("uptrend", "downtrend")),
    *(("clockwise", "counterclockwise"), ("clockwise", "anticlockwise"), ("cw", "ccw"), ("upstroke", "downstroke"), ("climbing", "sinking")),
]  # fmt: skip
IN_TIME = [
    *(("forward", "backward"), ("forwards", "backwards"), ("accelerate", "brake"), ("accelerating", "braking"), ("accelerate", "decelerate")),
    *(("accelerating", "decelerating"), ("acceleration", "deceleration"), ("acceleration", "braking"), ("opening", "closing")),
    *(("approaching", "leaving"), ("approaching", "receding"), ("entering", "leaving"), ("entering", "exiting"), ("enter", "exit")),
    *(("arriving", "departing"), ("charging", "discharging"), ("charge", "discharge"), ("heating", "cooling"), ("warming", "cooling")),
    *(("filling", "draining"), ("filling", "emptying"), ("crescendo", "diminuendo"), ("inhale", "exhale"), ("speeding", "slowing")),
]  # fmt: skip
CLASSES = {
    *("class", "classes", "label", "labels", "category", "categories", "kind", "kinds", "target", "targets", "direction", "directions", "trend", "trends"),
    *("gesture", "gestures", "sign", "signs", "move", "moves", "motion", "motions", "movement", "movements", "turn", "turns", "slope", "slopes", "code", "codes"),
    *("action", "actions", "activity", "activities", "maneuver", "maneuvers", "manoeuvre", "manoeuvres", "answer", "answers", "events", "course", "headings"),
}  # fmt: skip
NO_CLASSES = {
    *("pad", "pads", "padding", "margin", "margins", "crop", "joint", "joints", "keypoint", "keypoints", "limb", "limbs", "skeleton", "bone", "bones", "landmark"),
    *("landmarks", "column", "columns", "cols", "feature", "features", "channel", "channels", "sensor", "sensors", "camera", "cameras", "view", "views", "box"),
    *("boxes", "key", "keys", "bounds", "borders", "offsets", "shifts", "layers", "arrows", "sort", "order", "mode", "modes", "electrodes", "inputs"),
}  # fmt: skip
BODY = {"eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle", "heel", "thumb", "cheek", "mouth", "hand", "foot", "hands", "feet", "arm", "leg"}
