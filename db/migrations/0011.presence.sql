-- Presence: which servers run, which endpoints have sessions there, and when an agent was last seen.

create table if not exists switchboard.gateways (
    id         uuid        primary key,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now()
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table  switchboard.gateways is 'The server processes that hold sessions; one that has not written for 45 seconds does not count (functions/presence).';
comment on column switchboard.gateways.id is 'Identity of the process, new with every start.';
comment on column switchboard.gateways.started_at is 'When it first wrote.';
comment on column switchboard.gateways.seen_at is 'When it last wrote: every 15 seconds while it has sessions.';

create table if not exists switchboard.endpoint_presence (
    endpoint_id uuid        not null references switchboard.endpoints (id),
    gateway_id  uuid        not null references switchboard.gateways (id) on delete cascade,
    sessions    jsonb       not null,
    changed_at  timestamptz not null default now(),
    primary key (endpoint_id, gateway_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
create index if not exists endpoint_presence_gateway on switchboard.endpoint_presence (gateway_id);
comment on table  switchboard.endpoint_presence is 'Which sessions an endpoint has in which server process; written when they change, not at every call.';
comment on column switchboard.endpoint_presence.endpoint_id is 'The endpoint.';
comment on column switchboard.endpoint_presence.gateway_id is 'The process.';
comment on column switchboard.endpoint_presence.sessions is 'Array of {client (what it calls itself, or null), since, stream (whether it listens)}, the oldest first.';
comment on column switchboard.endpoint_presence.changed_at is 'When they last changed.';

create table if not exists switchboard.endpoint_seen (
    endpoint_id uuid        not null references switchboard.endpoints (id),
    via         text        not null,
    seen_at     timestamptz not null,
    primary key (endpoint_id, via)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
comment on table  switchboard.endpoint_seen is 'When the agent of an endpoint was last seen. One row a writer, so that a server never waits for a sweep.';
comment on column switchboard.endpoint_seen.endpoint_id is 'The endpoint.';
comment on column switchboard.endpoint_seen.via is 'session: a server saw it; attempt: the fold of the counters found an attempt that it ended.';
comment on column switchboard.endpoint_seen.seen_at is 'When; of a session to the minute.';
