-- Admission control (SPEC-0030): budgets per queue, what they have spent, who changed them, and the wakes they owe.
--
-- Names, checks and indexes are the document's, but for three things that design.md asks for: keys begin with
-- endpoint_id, so that a row of mixed tenancy cannot exist; the check on window_weekday holds for a NULL
-- period, too; and charged, which every admitted claim writes: a gate that is only locked lets callers at
-- REPEATABLE READ through.

create table if not exists switchboard.admission_policies (
    endpoint_id           uuid        not null references switchboard.endpoints (id) on delete cascade,
    id                    uuid        not null default gen_random_uuid(),
    queue                 text        not null,
    max_in_flight         integer     check (max_in_flight between 0 and 10000),
    max_claims_per_window integer     check (max_claims_per_window between 0 and 1000000),
    window_period         text        check (window_period in ('hour', 'day', 'week')),
    window_tz             text,
    window_start          text        check (window_start ~ '^([01][0-9]|2[0-3]):[0-5][0-9]$'),
    window_weekday        text        check (window_weekday in ('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')),
    charged               bigint      not null default 0,
    created_by_human_id   uuid        not null references switchboard.humans (id),
    updated_by_human_id   uuid        not null references switchboard.humans (id),
    created_at            timestamptz not null default now(),
    updated_at            timestamptz not null default now(),
    primary key (endpoint_id, id),
    check (max_in_flight is not null or max_claims_per_window is not null),
    check (max_claims_per_window is null or (window_period is not null and window_tz is not null and window_start is not null)),
    check ((window_period is not distinct from 'week') = (window_weekday is not null))
) with (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create unique index if not exists idx_admission_policies_endpoint_queue on switchboard.admission_policies (endpoint_id, queue);
-- For the foreign keys; claims change no indexed column.
create index if not exists admission_policies_created_by on switchboard.admission_policies (created_by_human_id);
create index if not exists admission_policies_updated_by on switchboard.admission_policies (updated_by_human_id);
comment on table  switchboard.admission_policies is 'The budget of a queue of an endpoint: claims per window, claims in flight, or both. Its row is the gate that every claim in the queue passes.';
comment on column switchboard.admission_policies.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_policies.id is 'Identity of the policy; windows and audit name it.';
comment on column switchboard.admission_policies.queue is 'The queue of the endpoint.';
comment on column switchboard.admission_policies.max_in_flight is 'At most so many todos held at once, lapsed leases that nobody took included; 0: paused; NULL: no bound.';
comment on column switchboard.admission_policies.max_claims_per_window is 'At most so many claims in a window, retries and takeovers included; 0: paused; NULL: no bound.';
comment on column switchboard.admission_policies.window_period is 'hour, day or week.';
comment on column switchboard.admission_policies.window_tz is 'The zone whose local clock the window follows, as PostgreSQL spells it.';
comment on column switchboard.admission_policies.window_start is 'Local time at which windows begin, HH:MM; of an hour only the minutes count.';
comment on column switchboard.admission_policies.window_weekday is 'The day on which weeks begin, Mon to Sun; NULL for the other periods.';
comment on column switchboard.admission_policies.charged is 'Claims admitted under this policy, ever. Every admitted claim writes it.';
comment on column switchboard.admission_policies.created_by_human_id is 'The accountable human who made it.';
comment on column switchboard.admission_policies.updated_by_human_id is 'The accountable human who last changed it.';
comment on column switchboard.admission_policies.created_at is 'When it was made.';
comment on column switchboard.admission_policies.updated_at is 'When it was last changed by somebody; claims do not count.';

create table if not exists switchboard.admission_windows (
    endpoint_id  uuid        not null,
    policy_id    uuid        not null,
    window_start timestamptz not null,
    used         integer     not null default 0 check (used >= 0),
    updated_at   timestamptz not null default now(),
    primary key (endpoint_id, policy_id, window_start),
    foreign key (endpoint_id, policy_id) references switchboard.admission_policies (endpoint_id, id) on delete cascade
) with (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
comment on table  switchboard.admission_windows is 'How much of its budget a policy spent in each window; kept for 35 days.';
comment on column switchboard.admission_windows.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_windows.policy_id is 'The policy.';
comment on column switchboard.admission_windows.window_start is 'The instant at which the window began.';
comment on column switchboard.admission_windows.used is 'Claims committed in it; never given back.';
comment on column switchboard.admission_windows.updated_at is 'When it was last charged.';

create table if not exists switchboard.admission_policy_audit (
    endpoint_id       uuid        not null,
    id                bigint      generated always as identity,
    policy_id         uuid        not null,
    queue             text        not null,
    actor_human_id    uuid        not null,
    actor_endpoint_id uuid,
    action            text        not null check (action in ('create', 'update', 'delete')),
    before            jsonb,
    after             jsonb,
    at                timestamptz not null default now(),
    primary key (endpoint_id, id)
);
create index if not exists idx_admission_audit_scope on switchboard.admission_policy_audit (endpoint_id, queue, at desc);
comment on table  switchboard.admission_policy_audit is 'Who changed which budget how; outlives the policy, and goes by the retention of the endpoint.';
comment on column switchboard.admission_policy_audit.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_policy_audit.id is 'Order of the entries.';
comment on column switchboard.admission_policy_audit.policy_id is 'The policy, which may be gone.';
comment on column switchboard.admission_policy_audit.queue is 'Its queue.';
comment on column switchboard.admission_policy_audit.actor_human_id is 'The accountable human: who did it, or who owns the endpoint whose agent did.';
comment on column switchboard.admission_policy_audit.actor_endpoint_id is 'The endpoint whose agent, or whose database login, did it; NULL: the human did.';
comment on column switchboard.admission_policy_audit.action is 'create, update or delete.';
comment on column switchboard.admission_policy_audit.before is 'The policy before, as set_admission_policy takes it; NULL: there was none.';
comment on column switchboard.admission_policy_audit.after is 'The policy after; NULL: there is none any more.';
comment on column switchboard.admission_policy_audit.at is 'When.';

create table if not exists switchboard.admission_changes (
    endpoint_id uuid   primary key references switchboard.endpoints (id) on delete cascade,
    changes     bigint not null default 0
) with (fillfactor = 50);
comment on table  switchboard.admission_changes is 'One row an endpoint, written with every change of one of its budgets: a claimer whose snapshot is older locks it, and fails instead of passing by a policy that it cannot see.';
comment on column switchboard.admission_changes.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_changes.changes is 'How many changes there were.';
insert into switchboard.admission_changes (endpoint_id) select e.id from switchboard.endpoints e on conflict do nothing;

-- Rows come and go with every claim that shuts a queue; cut down to nothing by each vacuum, the table would be scanned as a whole by plans
-- made just then, while it grows again: ends of todos of every endpoint look into it.
create table if not exists switchboard.admission_owed (
    endpoint_id uuid        not null references switchboard.endpoints (id) on delete cascade,
    queue       text        not null,
    id          uuid        not null default gen_random_uuid(),
    created_at  timestamptz not null default now(),
    primary key (endpoint_id, queue, id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = false);
comment on table  switchboard.admission_owed is 'Queues that were shut by their budget since anybody was last told that they are open: a wake is owed when they reopen (functions/reopen).';
comment on column switchboard.admission_owed.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_owed.queue is 'Its queue.';
comment on column switchboard.admission_owed.id is 'Tells apart the rows that concurrent transactions wrote; no meaning of its own.';
comment on column switchboard.admission_owed.created_at is 'Since when.';

create table if not exists switchboard.admission_refusals (
    endpoint_id uuid   not null,
    id          bigint generated always as identity,
    queue       text   not null,
    reason      text   not null,
    primary key (endpoint_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
comment on table  switchboard.admission_refusals is 'Claims that a budget refused, one row each until a sweep adds them to admission_totals: rows, since a counter would let callers wait for each other.';
comment on column switchboard.admission_refusals.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_refusals.id is 'Order; no meaning of its own.';
comment on column switchboard.admission_refusals.queue is 'The queue.';
comment on column switchboard.admission_refusals.reason is 'window_exhausted, in_flight_full, paused or admission_unavailable.';

create table if not exists switchboard.admission_totals (
    endpoint_id uuid   not null,
    queue       text   not null,
    kind        text   not null,
    total       bigint not null,
    primary key (endpoint_id, queue, kind)
) with (fillfactor = 50);
comment on table  switchboard.admission_totals is 'Counters that outlive what they were counted from: refusals that were folded, charges of policies that are gone.';
comment on column switchboard.admission_totals.endpoint_id is 'The endpoint.';
comment on column switchboard.admission_totals.queue is 'The queue.';
comment on column switchboard.admission_totals.kind is 'charged, or the reason of refusals.';
comment on column switchboard.admission_totals.total is 'How many; only ever grows.';

-- What is in flight, counted under the lock of a policy. Owner transitions must not be planned over it (functions/finish).
create index if not exists idx_todos_claimed_endpoint_queue on switchboard.todos (endpoint_id, queue) where state = 'claimed';

do $$
begin
    create type switchboard.admission_state as (
        policy_id uuid, queue text, status text, max_in_flight integer, in_flight integer, max_claims_per_window integer, used integer,
        window_start timestamptz, window_end timestamptz, next_eligible_at timestamptz, exact boolean);
exception when duplicate_object then null;
end $$;
comment on type switchboard.admission_state is 'A policy at an instant: its status (open, or the reason why claims are deferred) and what is used of its limits. All NULL: no policy.';

do $$
begin
    create type switchboard.admitted as (todo switchboard.todo, queue text, refused text);
exception when duplicate_object then null;
end $$;
comment on type switchboard.admitted is 'Internal: a todo that a claim took past the policy of queue, or why that refused.';

insert into switchboard.sweeps (name) values ('reopen_admission') on conflict do nothing;
