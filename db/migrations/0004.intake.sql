-- Webhook receivers and the deliveries they took.

create table if not exists switchboard.endpoint_webhooks (
    endpoint_id    uuid        not null references switchboard.endpoints (id),
    id             uuid        not null default gen_random_uuid(),
    source_type    text        not null,
    target_queue   text        not null,
    trust_mode     text        not null,
    token_digest   bytea       not null unique check (octet_length(token_digest) = 32),
    sealed_secrets bytea[]     not null,
    created_at     timestamptz not null default now(),
    primary key (endpoint_id, id)
);
comment on table  switchboard.endpoint_webhooks is 'Receivers: a URL with a token, the scheme by which its deliveries are verified, and the queue they go to.';
comment on column switchboard.endpoint_webhooks.endpoint_id is 'The endpoint that owns the receiver.';
comment on column switchboard.endpoint_webhooks.id is 'Identity of the receiver; first part of its deliveries'' idempotency keys.';
comment on column switchboard.endpoint_webhooks.source_type is 'The sender''s scheme, for example github.';
comment on column switchboard.endpoint_webhooks.target_queue is 'The queue its todos go to.';
comment on column switchboard.endpoint_webhooks.trust_mode is 'Trust of its deliveries, derived from the source type.';
comment on column switchboard.endpoint_webhooks.token_digest is 'SHA-256 of the token in its URL.';
comment on column switchboard.endpoint_webhooks.sealed_secrets is 'Signing secrets, sealed by the shell; several while a rotation''s grace lasts.';
comment on column switchboard.endpoint_webhooks.created_at is 'When it was made.';

create table if not exists switchboard.events (
    endpoint_id  uuid        not null references switchboard.endpoints (id),
    id           uuid        not null,
    todo_id      uuid        not null,
    webhook_id   uuid        not null,
    delivery_id  text        not null,
    event_type   text,
    content_type text,
    trust_mode   text        not null,
    headers      jsonb       not null,
    body         bytea       not null,
    received_at  timestamptz not null default now(),
    primary key (endpoint_id, id)
);
-- Deliveries of one receiver, newest first; and the cascade of its removal.
create index if not exists events_webhook on switchboard.events (endpoint_id, webhook_id, id);
comment on table  switchboard.events is 'Verified deliveries as they came: headers without secrets, body byte for byte.';
comment on column switchboard.events.endpoint_id is 'The endpoint that got it: a delivery that fans out is stored once per target.';
comment on column switchboard.events.id is 'Time-ordered identity of the delivery.';
comment on column switchboard.events.todo_id is 'The todo that was made of it.';
comment on column switchboard.events.webhook_id is 'The receiver it came through.';
comment on column switchboard.events.delivery_id is 'The sender''s delivery id, or the SHA-256 of the body in hex.';
comment on column switchboard.events.event_type is 'The sender''s event name, for example pull_request.';
comment on column switchboard.events.content_type is 'Content-Type of the request.';
comment on column switchboard.events.trust_mode is 'Trust of the delivery.';
comment on column switchboard.events.headers is 'Request headers with every secret redacted.';
comment on column switchboard.events.body is 'The body as received.';
comment on column switchboard.events.received_at is 'When it was stored.';
