-- Wakes: how far doorbells have rung, notify hooks and their outbox, and the ledger of stall nudges.

-- First endpoints, then queue_marks: the order in which a claim beside this locks them.
alter table switchboard.endpoints add column if not exists stalled_queues text[];
comment on column switchboard.endpoints.stalled_queues is 'Queues that were nudged and have made no progress since: a claim in one of them notes it (functions/stall). NULL: none.';

alter table switchboard.queue_marks add column if not exists rung_from timestamptz not null default 'epoch';
comment on column switchboard.queue_marks.rung_from is 'Doorbells look from here: what was created before has rung once, as far as is known (functions/doorbell).';

create table if not exists switchboard.notify_hooks (
    endpoint_id          uuid        not null references switchboard.endpoints (id),
    id                   uuid        not null default gen_random_uuid(),
    url                  text        not null,
    queues               text[],
    sealed_secret        bytea,
    previous_secret      bytea,
    previous_valid_until timestamptz check (isfinite(previous_valid_until)),
    failures             integer     not null default 0,
    disabled_at          timestamptz check (isfinite(disabled_at)),
    last_delivered_at    timestamptz check (isfinite(last_delivered_at)),
    last_failed_at       timestamptz check (isfinite(last_failed_at)),
    last_status          text,
    quota_full_at        timestamptz not null default 'epoch',
    created_at           timestamptz not null default now(),
    primary key (endpoint_id, id)
) with (fillfactor = 50);
comment on table  switchboard.notify_hooks is 'URLs that are called when a todo becomes ready, for consumers that hold no session.';
comment on column switchboard.notify_hooks.endpoint_id is 'The endpoint whose todos it is about.';
comment on column switchboard.notify_hooks.id is 'Identity of the hook.';
comment on column switchboard.notify_hooks.url is 'Where the call goes; vetted by the shell when it is made and again before every attempt.';
comment on column switchboard.notify_hooks.queues is 'The queues it covers; NULL: all of the endpoint.';
comment on column switchboard.notify_hooks.sealed_secret is 'The secret that signs its calls, sealed by the shell; NULL: the hook sends nothing.';
comment on column switchboard.notify_hooks.previous_secret is 'The secret that a rotation replaced, sealed; calls are signed with both until previous_valid_until.';
comment on column switchboard.notify_hooks.previous_valid_until is 'Until when the previous secret signs, too; NULL: never rotated.';
comment on column switchboard.notify_hooks.failures is 'Deliveries that failed since the last one that succeeded.';
comment on column switchboard.notify_hooks.disabled_at is 'When it was disabled after ten failed deliveries; NULL: enabled. Rotating its secret enables it again.';
comment on column switchboard.notify_hooks.last_delivered_at is 'When a call last succeeded.';
comment on column switchboard.notify_hooks.last_failed_at is 'When an attempt last failed.';
comment on column switchboard.notify_hooks.last_status is 'How the last attempt ended: 2xx, 3xx, 4xx, 5xx, timeout, unreachable, refused (the address is not allowed), unsealable.';
comment on column switchboard.notify_hooks.quota_full_at is 'When its quota of calls will be whole again (120 a minute).';
comment on column switchboard.notify_hooks.created_at is 'When it was made.';

create table if not exists switchboard.notify_deliveries (
    endpoint_id uuid        not null,
    id          uuid        not null,
    hook_id     uuid        not null,
    todo_id     uuid        not null,
    queue       text        not null,
    reason      text        not null,
    attempts    integer     not null default 0,
    due_at      timestamptz,
    ended_at    timestamptz,
    outcome     text,
    created_at  timestamptz not null default now(),
    primary key (endpoint_id, id),
    foreign key (endpoint_id, hook_id) references switchboard.notify_hooks (endpoint_id, id) on delete cascade
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- All calls of a hook, in order of time.
create index if not exists notify_deliveries_hook on switchboard.notify_deliveries (endpoint_id, hook_id, id);
-- What is to be sent, by hook and time.
create index if not exists notify_deliveries_due on switchboard.notify_deliveries (endpoint_id, hook_id, due_at) where due_at is not null;
-- What is to be sent again: before all that waits for its first attempt.
create index if not exists notify_deliveries_again on switchboard.notify_deliveries (endpoint_id, hook_id, due_at) where due_at is not null and attempts > 0;
comment on table  switchboard.notify_deliveries is 'The outbox: one row a call to make, written by the transaction that made the todo ready; its id is the call''s webhook-id.';
comment on column switchboard.notify_deliveries.endpoint_id is 'The endpoint.';
comment on column switchboard.notify_deliveries.id is 'Time-ordered identity; the same over all attempts.';
comment on column switchboard.notify_deliveries.hook_id is 'The hook that is called.';
comment on column switchboard.notify_deliveries.todo_id is 'The todo that is ready.';
comment on column switchboard.notify_deliveries.queue is 'Its queue.';
comment on column switchboard.notify_deliveries.reason is 'created, requeued, reopened or stalled.';
comment on column switchboard.notify_deliveries.attempts is 'Attempts begun, at most 3.';
comment on column switchboard.notify_deliveries.due_at is 'When the next attempt may begin; while one runs, when it counts as lost. NULL: it has ended.';
comment on column switchboard.notify_deliveries.ended_at is 'When it ended.';
comment on column switchboard.notify_deliveries.outcome is 'delivered, failed, moot (the todo was no longer pending) or dropped (its hook was disabled).';
comment on column switchboard.notify_deliveries.created_at is 'When the todo became ready.';

create table if not exists switchboard.notify_totals (
    shard   smallint not null,
    type    text     not null,
    outcome text     not null,
    total   bigint   not null,
    primary key (shard, type, outcome)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table  switchboard.notify_totals is 'How many calls to hooks ended, and how. Sharded by session, as delivery_totals.';
comment on column switchboard.notify_totals.shard is 'Which part of the sum this is; no meaning of its own.';
comment on column switchboard.notify_totals.type is 'The type of the notification: todo.ready.';
comment on column switchboard.notify_totals.outcome is 'delivered, failed, moot, dropped, or disabled (hooks, not calls).';
comment on column switchboard.notify_totals.total is 'How many; only ever grows.';

create table if not exists switchboard.queue_stall_nudges (
    endpoint_id    uuid        not null references switchboard.endpoints (id),
    queue          text        not null,
    nudges         integer     not null check (nudges between 1 and 5),
    last_nudged_at timestamptz not null check (isfinite(last_nudged_at)),
    progressed_at  timestamptz check (isfinite(progressed_at)),
    primary key (endpoint_id, queue)
) with (fillfactor = 50);
comment on table  switchboard.queue_stall_nudges is 'The nudge ledger (SPEC-0038): which queues were nudged, how often since they made progress, and when.';
comment on column switchboard.queue_stall_nudges.endpoint_id is 'The endpoint.';
comment on column switchboard.queue_stall_nudges.queue is 'Its queue.';
comment on column switchboard.queue_stall_nudges.nudges is 'Nudges since the queue last made progress, the last one included; 1 to 5.';
comment on column switchboard.queue_stall_nudges.last_nudged_at is 'When it was last nudged.';
comment on column switchboard.queue_stall_nudges.progressed_at is 'The first claim after the last nudge, as far as a claim noted it; NULL: none.';

insert into switchboard.sweeps (name) values ('sweep_stalled') on conflict do nothing;
