"""Plain HTTPS as the carrier, for devices: clients poll the server with short requests.

    GET   /v1/next                 the next message for this client, or how long to wait
    GET   /v1/messages/ID          a later range of that message
    PATCH /v1/answers/ID?...       upload a range of the answer to it
    HEAD  /v1/answers/ID?...       the number of bytes of the answer that have arrived
    GET   /health                  health check for monitoring

Every request but the last is signed with the client's key (`signing`). A message is identified by
its digest, so that both ends can resume a transfer after an interruption.
"""
