-- What the sweeps remember: when each last ran, and the counters folded from ended attempts.

create table if not exists switchboard.sweeps (
    name        text        primary key,
    last_run_at timestamptz not null default 'epoch',
    last_count  bigint      not null default 0,
    last_error  text
) with (fillfactor = 50);
comment on table  switchboard.sweeps is 'One row per sweep; its lock keeps two ticks from running one sweep at once.';
comment on column switchboard.sweeps.name is 'The sweep''s name, in the order it runs.';
comment on column switchboard.sweeps.last_run_at is 'When it last ran, by switchboard.now().';
comment on column switchboard.sweeps.last_count is 'How many rows it then moved.';
comment on column switchboard.sweeps.last_error is 'SQLSTATE of its last failure; NULL when the last run succeeded.';

create table if not exists switchboard.attempt_totals (
    endpoint_id uuid    not null references switchboard.endpoints (id),
    queue       text    not null,
    outcome     text    not null,
    state       text    not null,
    attempt     integer not null,
    total       bigint  not null,
    primary key (endpoint_id, queue, outcome, state, attempt)
) with (fillfactor = 50);
comment on table  switchboard.attempt_totals is 'Ended attempts counted so far; what lies at or beyond attempt_fold is added by the reader.';
comment on column switchboard.attempt_totals.endpoint_id is 'The endpoint.';
comment on column switchboard.attempt_totals.queue is 'The queue.';
comment on column switchboard.attempt_totals.outcome is 'How the attempts ended.';
comment on column switchboard.attempt_totals.state is 'The state the todos got by it.';
comment on column switchboard.attempt_totals.attempt is 'The attempt counter they ended with.';
comment on column switchboard.attempt_totals.total is 'How many; only ever grows.';

create table if not exists switchboard.attempt_fold (
    singleton boolean primary key default true check (singleton),
    folded_to xid8    not null default '0'
) with (fillfactor = 50);
insert into switchboard.attempt_fold default values on conflict do nothing;
comment on table  switchboard.attempt_fold is 'One row: how far attempt_totals has counted.';
comment on column switchboard.attempt_fold.singleton is 'Always true: keeps this table at one row.';
comment on column switchboard.attempt_fold.folded_to is 'Attempts ended by transactions below this are in attempt_totals.';
insert into switchboard.sweeps (name)
values ('reap_expired'), ('requeue_due_retries'), ('retire_endpoints'), ('settle_marks'), ('fold_attempts'), ('prune')
on conflict do nothing;
