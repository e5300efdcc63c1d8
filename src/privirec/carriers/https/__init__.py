"""Plain HTTPS as the carrier, for devices: short requests of clients that ask whether there is
something for them.

    GET   /v1/next                 the message that waits for this client, or how long to wait
    GET   /v1/messages/ID          a later range of that message
    PATCH /v1/answers/ID?...       a range of the answer to it
    HEAD  /v1/answers/ID?...       how much of the answer is there
    GET   /health                  for whoever watches the server

Every request but the last is signed by the client's key (`signing`). A message is known by its
digest, so that both ends go on with it after any interruption.
"""
