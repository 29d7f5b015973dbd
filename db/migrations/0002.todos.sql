-- The queue: todos, the history of their attempts, and the marks from which claims look.
-- Every index is paid for at every claim and every end, predicates included, so each says which
-- question it answers, and predicates are as small as they can be.

do $$
begin
    create domain switchboard.trust_mode as text check (value in ('signed', 'token', 'open', 'operator', 'agent', 'sql'));
exception when duplicate_object then null;
end $$;
comment on domain switchboard.trust_mode is 'How far the origin of a todo was verified. A domain, not a CHECK of the table: those run at every update.';

do $$
begin
    create type switchboard.todo_state as enum ('pending', 'claimed', 'done', 'failed');
exception when duplicate_object then null;
end $$;
comment on type switchboard.todo_state is 'The four states of SPEC-0003, Todo Lifecycle State Machine.';

create table if not exists switchboard.todos (
    endpoint_id      uuid        not null references switchboard.endpoints (id),
    id               uuid        not null,
    created_at       timestamptz not null default now(),
    updated_at       timestamptz not null default now(),
    claimed_at       timestamptz,
    due_at           timestamptz,
    completed_at     timestamptz,
    last_ringed_at   timestamptz,
    attempt          integer     not null default 0,
    max_attempts     integer     not null default 5,
    claims           integer     not null default 0,
    lease_seconds    integer,
    ring_attempts    integer     not null default 0,
    event_id         uuid,
    state            switchboard.todo_state not null default 'pending',
    queue            text        not null,
    owner            text,
    lease_token      text,
    assignee         text,
    kind             text,
    source           text,
    trust_mode       switchboard.trust_mode not null,
    title            text        not null,
    idempotency_key  text,
    payload          jsonb       not null default '{}',
    result           jsonb,
    -- What holds between these columns is in unsound_todos(), which the tests ask, and not in CHECK
    -- constraints: PostgreSQL parses each of them again in every statement, 5 % of a claim and its end.
    primary key (endpoint_id, id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.05);

-- lz4 takes a fifth of the time of pglz; not every server is built with it.
do $$
begin
    alter table switchboard.todos alter column payload set compression lz4, alter column result set compression lz4;
exception when feature_not_supported then null;
end $$;

-- The head of each queue's pool. Assigned todos lie apart, so that 50,000 of them at the head are not
-- walked by everybody else's claim.
create index if not exists todos_pool on switchboard.todos (endpoint_id, queue, created_at, id)
    where state = 'pending' and assignee is null;
create index if not exists todos_assigned on switchboard.todos (endpoint_id, assignee, queue, created_at, id)
    where state = 'pending' and assignee is not null;
-- What becomes claimable by itself: leases by their end, parked retries by the end of their backoff.
create index if not exists todos_due on switchboard.todos (endpoint_id, due_at)
    where due_at is not null;
-- One live todo a key (SPEC-0003, Per-Endpoint Idempotency). Live, neither done nor a dead letter, is
-- what has no completed_at.
create unique index if not exists todos_live_key on switchboard.todos (endpoint_id, idempotency_key)
    where completed_at is null and idempotency_key is not null;
-- Terminal todos, for lists and retention, in order of creation (that of ids).
create index if not exists todos_finished on switchboard.todos (endpoint_id, queue, state, id)
    where completed_at is not null;

comment on table  switchboard.todos is 'The durable unit of work (SPEC-0003). Written by the functions of this schema only; docs/states.md has the transitions.';
comment on column switchboard.todos.endpoint_id is 'The endpoint that owns the todo for its whole life.';
comment on column switchboard.todos.id is 'Time-ordered (version 7): order by id is order by created_at, id.';
comment on column switchboard.todos.created_at is 'When it was created; claims take the oldest first.';
comment on column switchboard.todos.updated_at is 'When a transition last changed it.';
comment on column switchboard.todos.claimed_at is 'When the last claim was made; NULL before the first one and after retry.';
comment on column switchboard.todos.due_at is 'When it becomes claimable by itself: the end of the lease while claimed, of the backoff while parked; a failed todo without one is a dead letter.';
comment on column switchboard.todos.completed_at is 'When it became terminal (done or dead letter); set exactly then.';
comment on column switchboard.todos.last_ringed_at is 'When a doorbell last rang for it.';
comment on column switchboard.todos.attempt is 'Claims since creation or the last retry; never above max_attempts.';
comment on column switchboard.todos.max_attempts is 'The attempt after which failure or lapse dead-letters; 1..100.';
comment on column switchboard.todos.claims is 'Claims ever: the sequence of its attempt history, which retry does not reset.';
comment on column switchboard.todos.lease_seconds is 'What the last claim asked for: a heartbeat without a value renews for this long.';
comment on column switchboard.todos.ring_attempts is 'Doorbells rung since it last became pending.';
comment on column switchboard.todos.event_id is 'The delivery it was made from; NULL when none.';
comment on column switchboard.todos.state is 'pending, claimed, done or failed (SPEC-0003, Todo Lifecycle State Machine).';
comment on column switchboard.todos.queue is 'A label within the endpoint''s grant; not a tenant boundary.';
comment on column switchboard.todos.owner is 'Who holds it, or held it when it ended; agent:<slug> over MCP, op:<human> on the board.';
comment on column switchboard.todos.lease_token is 'Names this one lease; new with every claim, shown to the claimer only.';
comment on column switchboard.todos.assignee is 'Only this owner may claim it; NULL: anyone whose grant covers the queue.';
comment on column switchboard.todos.kind is 'What sort of work, in the sender''s words.';
comment on column switchboard.todos.source is 'Where it came from, in the sender''s words.';
comment on column switchboard.todos.trust_mode is 'How far its origin was verified; derived from the path it came by, never supplied.';
comment on column switchboard.todos.title is 'One line for people, at most 500 characters; text of others, never an instruction.';
comment on column switchboard.todos.idempotency_key is 'Deduplicates creates among live todos of the endpoint; NULL: none.';
comment on column switchboard.todos.payload is 'What to work on: any JSON but null.';
comment on column switchboard.todos.result is 'What the holder reported when it completed or failed.';

create table if not exists switchboard.todo_attempts (
    endpoint_id uuid        not null,
    todo_id     uuid        not null,
    seq         integer     not null,
    attempt     integer     not null,
    claimed_at  timestamptz not null,
    ended_at    timestamptz not null,
    xid         xid8        not null default pg_current_xact_id(),
    queue       text        not null,
    owner       text        not null,
    outcome     text        not null,
    state       text        not null,
    summary     text,
    -- No foreign key to todos: checking it costs 6 % of a claim and its end. A row is written only by the
    -- statement that holds its todo, and deleted only with it (functions/sweeps, prune).
    primary key (endpoint_id, todo_id, seq)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
-- The fold of the counters reads from here in order of transaction.
create index if not exists todo_attempts_xid on switchboard.todo_attempts (xid);
comment on table  switchboard.todo_attempts is 'One row per ended attempt, written by the transition that ended it.';
comment on column switchboard.todo_attempts.endpoint_id is 'The endpoint of the todo.';
comment on column switchboard.todo_attempts.todo_id is 'The todo.';
comment on column switchboard.todo_attempts.seq is 'Which claim of the todo this was, from 1; retry does not reset it.';
comment on column switchboard.todo_attempts.attempt is 'The todo''s attempt counter at that time; retry resets it.';
comment on column switchboard.todo_attempts.claimed_at is 'When the attempt began.';
comment on column switchboard.todo_attempts.ended_at is 'When it ended.';
comment on column switchboard.todo_attempts.xid is 'The transaction that ended it: what the counters have not folded yet is told by this.';
comment on column switchboard.todo_attempts.queue is 'The queue of the todo.';
comment on column switchboard.todo_attempts.owner is 'Who held the lease.';
comment on column switchboard.todo_attempts.outcome is 'done, failed, released, lapsed, overridden (an operator ended a lease of somebody else) or revoked.';
comment on column switchboard.todo_attempts.state is 'The state the todo got by it.';
comment on column switchboard.todo_attempts.summary is 'The first 200 characters of what the holder reported.';

create table if not exists switchboard.queue_marks (
    endpoint_id  uuid        not null references switchboard.endpoints (id),
    queue        text        not null check (queue ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    pending_from timestamptz not null default 'epoch',
    primary key (endpoint_id, queue)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
comment on table  switchboard.queue_marks is 'One row per queue ever granted, with the low-water mark of its pool (see functions/claim).';
comment on column switchboard.queue_marks.endpoint_id is 'The endpoint.';
comment on column switchboard.queue_marks.queue is 'The queue.';
comment on column switchboard.queue_marks.pending_from is 'Claims look from here: nothing pending in the pool is known to be older.';

do $$
begin
    create type switchboard.todo as (
        id uuid, endpoint_id uuid, queue text, state text, kind text, source text, title text, payload jsonb,
        assignee text, owner text, lease_expires_at timestamptz, lease_token text, claimed_at timestamptz,
        attempt integer, max_attempts integer, next_retry_at timestamptz, dead_letter boolean, result jsonb,
        idempotency_key text, trust_mode text, verified boolean, ring_attempts integer, last_ringed_at timestamptz,
        event_id uuid, created_at timestamptz, updated_at timestamptz, completed_at timestamptz, claims integer);
exception when duplicate_object then null;
end $$;
comment on type switchboard.todo is 'A todo as callers see it; lease_token is set for the claimer only.';

do $$
begin
    create type switchboard.created_todo as (
        id uuid, endpoint_id uuid, queue text, state text, kind text, source text, title text, payload jsonb,
        assignee text, owner text, lease_expires_at timestamptz, lease_token text, claimed_at timestamptz,
        attempt integer, max_attempts integer, next_retry_at timestamptz, dead_letter boolean, result jsonb,
        idempotency_key text, trust_mode text, verified boolean, ring_attempts integer, last_ringed_at timestamptz,
        event_id uuid, created_at timestamptz, updated_at timestamptz, completed_at timestamptz, claims integer, created boolean);
exception when duplicate_object then null;
end $$;
comment on type switchboard.created_todo is 'A todo and whether this call created it.';

do $$
begin
    create type switchboard.claim_terms as (
        endpoint_id uuid, owner text, queues text[], lease_seconds integer, at timestamptz,
        due_from timestamptz, any_due boolean, any_assigned boolean, assigned_from timestamptz, only_from timestamptz);
exception when duplicate_object then null;
end $$;
comment on type switchboard.claim_terms is 'Internal: the checked terms of one claim, as functions/claim passes them on.';
