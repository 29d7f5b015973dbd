-- Webhook receivers, where their deliveries go, the deliveries they took, and what was done about them.

create table if not exists switchboard.endpoint_webhooks (
    endpoint_id           uuid        not null references switchboard.endpoints (id),
    id                    uuid        not null default gen_random_uuid(),
    source_type           text        not null,
    target_queue          text        not null,
    trust_mode            text        not null,
    token_digest          bytea       not null unique check (octet_length(token_digest) = 32),
    sealed_secret         bytea       not null,
    previous_token_digest bytea       unique check (octet_length(previous_token_digest) = 32),
    previous_secret       bytea,
    previous_valid_until  timestamptz check (isfinite(previous_valid_until)),
    held                  boolean     not null default false,
    created_at            timestamptz not null default now(),
    primary key (endpoint_id, id)
);
comment on table  switchboard.endpoint_webhooks is 'Receivers: a URL with a token, the scheme by which its deliveries are verified, and the queue they go to.';
comment on column switchboard.endpoint_webhooks.endpoint_id is 'The endpoint that owns the receiver.';
comment on column switchboard.endpoint_webhooks.id is 'Identity of the receiver; first part of its deliveries'' idempotency keys.';
comment on column switchboard.endpoint_webhooks.source_type is 'The sender''s scheme: one of source_types().';
comment on column switchboard.endpoint_webhooks.target_queue is 'The queue its todos go to, on every target.';
comment on column switchboard.endpoint_webhooks.trust_mode is 'Trust of its deliveries, derived from the source type.';
comment on column switchboard.endpoint_webhooks.token_digest is 'SHA-256 of the token in its URL.';
comment on column switchboard.endpoint_webhooks.sealed_secret is 'The signing secret, sealed by the shell; meaningless where the type signs nothing.';
comment on column switchboard.endpoint_webhooks.previous_token_digest is 'SHA-256 of the token that a rotation replaced (types that sign nothing).';
comment on column switchboard.endpoint_webhooks.previous_secret is 'The secret that a rotation replaced, sealed (types that sign).';
comment on column switchboard.endpoint_webhooks.previous_valid_until is 'Until when the previous token or secret is accepted, too; NULL: never rotated.';
comment on column switchboard.endpoint_webhooks.held is 'Whether an operator holds its deliveries in quarantine.';
comment on column switchboard.endpoint_webhooks.created_at is 'When it was made.';

create table if not exists switchboard.webhook_routes (
    endpoint_id        uuid        not null,
    webhook_id         uuid        not null,
    target_endpoint_id uuid        not null references switchboard.endpoints (id),
    created_at         timestamptz not null default now(),
    primary key (endpoint_id, webhook_id, target_endpoint_id),
    foreign key (endpoint_id, webhook_id) references switchboard.endpoint_webhooks (endpoint_id, id) on delete cascade,
    check (target_endpoint_id <> endpoint_id)
);
-- Who routes to an endpoint.
create index if not exists webhook_routes_target on switchboard.webhook_routes (target_endpoint_id);
comment on table  switchboard.webhook_routes is 'Where else a receiver''s deliveries go: endpoints of the same human. The owner is a target without a row here.';
comment on column switchboard.webhook_routes.endpoint_id is 'The endpoint that owns the receiver.';
comment on column switchboard.webhook_routes.webhook_id is 'The receiver.';
comment on column switchboard.webhook_routes.target_endpoint_id is 'The endpoint that gets an event and a todo of each delivery.';
comment on column switchboard.webhook_routes.created_at is 'When the route was added.';

create table if not exists switchboard.events (
    endpoint_id  uuid        not null references switchboard.endpoints (id),
    id           uuid        not null,
    todo_id      uuid        not null,
    webhook_id   uuid        not null,
    source_type  text        not null,
    queue        text        not null,
    delivery_id  text        not null,
    event_type   text,
    content_type text,
    trust_mode   text        not null,
    verification jsonb       not null default '{}',
    headers      jsonb       not null,
    body         bytea       not null,
    document     text,
    received_at  timestamptz not null default now(),
    primary key (endpoint_id, id)
);
-- A body costs least to write with lz4, or else uncompressed.
do $$
begin
    alter table switchboard.events alter column body set compression lz4;
exception when feature_not_supported then
    alter table switchboard.events alter column body set storage external;
end $$;
-- Deliveries of one receiver, newest first.
create index if not exists events_webhook on switchboard.events (endpoint_id, webhook_id, id);
comment on table  switchboard.events is 'Verified deliveries as they came: headers without secrets, body byte for byte. One row a target; all targets of one delivery share its id.';
comment on column switchboard.events.endpoint_id is 'The endpoint that got it: a delivery that fans out is stored once per target.';
comment on column switchboard.events.id is 'Time-ordered identity of the delivery.';
comment on column switchboard.events.todo_id is 'The todo that was made of it when it came; replays are in webhook_audit.';
comment on column switchboard.events.webhook_id is 'The receiver it came through; it may be deleted since.';
comment on column switchboard.events.source_type is 'The receiver''s source type.';
comment on column switchboard.events.queue is 'The queue that the delivery was meant for, also when it is held in quarantine.';
comment on column switchboard.events.delivery_id is 'The sender''s delivery id (its SHA-256 when longer than 256 bytes), or the SHA-256 of the body, in hex.';
comment on column switchboard.events.event_type is 'The sender''s event name, for example pull_request.';
comment on column switchboard.events.content_type is 'Content-Type of the request.';
comment on column switchboard.events.trust_mode is 'Trust of the delivery.';
comment on column switchboard.events.verification is 'How it was verified: scheme, which secret fitted (current or previous), the time that was signed.';
comment on column switchboard.events.headers is 'Request headers with every secret redacted.';
comment on column switchboard.events.body is 'The body as received.';
comment on column switchboard.events.document is 'The JSON text to read where it is not the body itself: the field of a form-encoded one; NULL: the body.';
comment on column switchboard.events.received_at is 'When it was stored.';

create table if not exists switchboard.webhook_audit (
    endpoint_id uuid        not null references switchboard.endpoints (id),
    id          uuid        not null,
    at          timestamptz not null default now(),
    actor       text        not null,
    action      text        not null,
    webhook_id  uuid        not null,
    event_id    uuid,
    todo_id     uuid,
    detail      jsonb       not null default '{}',
    primary key (endpoint_id, id)
);
create index if not exists webhook_audit_webhook on switchboard.webhook_audit (endpoint_id, webhook_id, id);
-- What became of one delivery.
create index if not exists webhook_audit_event on switchboard.webhook_audit (endpoint_id, event_id) where event_id is not null;
comment on table  switchboard.webhook_audit is 'Who did what to a receiver, its routes and its deliveries; outlives the receiver.';
comment on column switchboard.webhook_audit.endpoint_id is 'The endpoint it happened on.';
comment on column switchboard.webhook_audit.id is 'Time-ordered identity of the entry.';
comment on column switchboard.webhook_audit.at is 'When.';
comment on column switchboard.webhook_audit.actor is 'Who: agent:<slug>, op:<human>, or the database login.';
comment on column switchboard.webhook_audit.action is 'created, rotated, deleted, routed, unrouted, held, unheld, released, discarded or replayed.';
comment on column switchboard.webhook_audit.webhook_id is 'The receiver.';
comment on column switchboard.webhook_audit.event_id is 'The delivery, where it is about one.';
comment on column switchboard.webhook_audit.todo_id is 'The todo, where it is about one.';
comment on column switchboard.webhook_audit.detail is 'What else is worth knowing: a route''s target, whether a replay made a todo.';

create table if not exists switchboard.delivery_totals (
    shard       smallint not null,
    provider    text     not null,
    trust_mode  text     not null,
    verdict     text     not null,
    reason      text     not null,
    total       bigint   not null,
    primary key (shard, provider, trust_mode, verdict, reason)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table  switchboard.delivery_totals is 'How many deliveries came, by what became of them. Sharded by session, so that deliveries do not queue for one row.';
comment on column switchboard.delivery_totals.shard is 'Which part of the sum this is; no meaning of its own.';
comment on column switchboard.delivery_totals.provider is 'Source type of the receiver; empty: there was none.';
comment on column switchboard.delivery_totals.trust_mode is 'Trust of the receiver''s deliveries; empty: there was none.';
comment on column switchboard.delivery_totals.verdict is 'accepted, duplicate, silent (answered, no work), no_target, refused or limited.';
comment on column switchboard.delivery_totals.reason is 'Why one was refused, for example mismatch or stale; else empty.';
comment on column switchboard.delivery_totals.total is 'How many; only ever grows.';
