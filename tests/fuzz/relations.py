"""What may only rise, or only fall."""


def draw(random):
    return 0


def judge(asked):
    return 0
