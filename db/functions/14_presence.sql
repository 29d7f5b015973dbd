-- Presence: which endpoints have an agent on the line, and when it was last seen.
--
-- Sessions live in the memory of server processes. Each process writes what it holds when that changes, and
-- says every 15 seconds that it still runs: one statement a process, none a call, so that nothing of it lies on
-- the path of an agent. What a process that died had written does not count 45 seconds later, and is swept.
-- An agent is seen while it has a stream open or calls in a session; whoever comes by SQL is seen by what it
-- holds, and by the attempts that it ended, which the fold of the counters finds (functions/sweeps).
-- Operators (owners op:…) do not count: it is about the agent.
-- Presence is for people who look. No transition asks it, and a lost write loses nothing but a lamp.
-- Lock order: the process's own row, then its presence in order of endpoint, then what was seen; nothing is
-- locked that a transition locks, but for the share that the foreign key takes on an endpoint.

create or replace function switchboard.note_presence(p_gateway_id uuid, p_sessions jsonb, p_seen text[] default '{}') returns boolean
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now   timestamptz := clock();
    v_known boolean;
begin
    update gateways g set seen_at = v_now where g.id = p_gateway_id;
    v_known := found;
    if not v_known then
        insert into gateways (id, started_at, seen_at) values (p_gateway_id, v_now, v_now);
    end if;
    with changed as materialized (
        select e.id, c.value as sessions from jsonb_each(p_sessions) c join endpoints e on e.id = as_uuid(c.key) order by e.id
    ), gone as (
        delete from endpoint_presence p using changed c where p.gateway_id = p_gateway_id and p.endpoint_id = c.id and c.sessions = '[]'
    )
    insert into endpoint_presence as p (endpoint_id, gateway_id, sessions, changed_at)
    select c.id, p_gateway_id, present_sessions(c.sessions, v_now), v_now from changed c where c.sessions <> '[]' order by c.id
    on conflict (endpoint_id, gateway_id) do update set sessions = excluded.sessions, changed_at = excluded.changed_at;
    insert into endpoint_seen as s (endpoint_id, via, seen_at)
    select e.id, 'session', date_trunc('minute', v_now) from endpoints e where e.id in (select as_uuid(n) from unnest(p_seen) n) order by e.id
    on conflict (endpoint_id, via) do update set seen_at = excluded.seen_at where s.seen_at <> excluded.seen_at;
    return v_known;
end $$;
comment on function switchboard.note_presence(uuid, jsonb, text[]) is
'What a server process says of its sessions. p_gateway_id: the process; p_sessions: for each endpoint (id) whose sessions changed since it last said so all that it has, [{client, age (seconds), stream}], [] when none are left; p_seen: ids of the endpoints that were active since. Ids that are no endpoint''s are passed over. Returns whether the process was known: if not, all it said before is forgotten, and it has to say everything again. Writes gateways, endpoint_presence, endpoint_seen.';

create or replace function switchboard.present_sessions(p_sessions jsonb, p_at timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_agg(jsonb_build_object('client', nullif(one_line(s.value ->> 'client', 80), ''), 'stream', coalesce(s.value -> 'stream', 'false'),
                                        'since', p_at - make_interval(secs => (s.value ->> 'age')::double precision)) order by s.ordinality)
    from jsonb_array_elements(p_sessions) with ordinality s
$$;
comment on function switchboard.present_sessions(jsonb, timestamptz) is
'Sessions as a process tells of them (age in seconds) as they are stored: with the time since when, and the client''s name, which is text of others, on one line of at most 80 characters.';

create or replace function switchboard.end_presence(p_gateway_id uuid) returns void
language sql volatile security definer set search_path = switchboard, pg_temp
as $$
    delete from gateways g where g.id = p_gateway_id
$$;
comment on function switchboard.end_presence(uuid) is 'A server process ends: its sessions are gone. Writes gateways, endpoint_presence.';

create or replace function switchboard.sessions_of(p_endpoint_id uuid, p_at timestamptz)
returns table (client text, since timestamptz, stream boolean)
language sql stable set search_path = switchboard, pg_temp
as $$
    select s.client, s.since, s.stream
    from endpoint_presence p join gateways g on g.id = p.gateway_id
    cross join lateral jsonb_to_recordset(p.sessions) s (client text, since timestamptz, stream boolean)
    where p.endpoint_id = p_endpoint_id and g.seen_at > p_at - interval '45 seconds'
    order by s.since, s.client
$$;
comment on function switchboard.sessions_of(uuid, timestamptz) is 'The sessions that an endpoint has at p_at, over all server processes, the oldest first; stream: whether it listens. Reads endpoint_presence, gateways.';

create or replace function switchboard.streams_of(p_endpoint_id uuid, p_at timestamptz) returns integer
language sql stable set search_path = switchboard, pg_temp
as $$
    select nullif(count(*) filter (where s.stream), 0)::integer from sessions_of(p_endpoint_id, p_at) s
$$;
comment on function switchboard.streams_of(uuid, timestamptz) is 'How many sessions of the endpoint listen at p_at; NULL: none. Reads endpoint_presence, gateways.';

create or replace function switchboard.last_seen(p_endpoint_id uuid) returns timestamptz
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return greatest(
        (select max(s.seen_at) from endpoint_seen s where s.endpoint_id = p_endpoint_id),
        (select max(greatest(h.claimed_at, h.updated_at)) from (
            select t.claimed_at, t.updated_at, t.owner from todos t
            where t.endpoint_id = p_endpoint_id and t.state = 'claimed' limit 100) h where h.owner not like 'op:%'));
end $$;
comment on function switchboard.last_seen(uuid) is
'The newest sign of the endpoint''s agent: in a session (to the minute), by a claim or heartbeat of what it holds (looked for among 100), or by the end of an attempt, as of the last fold of the counters; NULL: none ever. Reads endpoint_seen, todos.';

create or replace function switchboard.settle_presence() returns bigint
language sql volatile set search_path = switchboard, pg_temp
as $$
    with gone as (
        delete from gateways g where g.id in (
            select k.id from gateways k where k.seen_at < clock() - interval '5 minutes' for update skip locked)
        returning g.id
    )
    select count(*) from gone
$$;
comment on function switchboard.settle_presence() is 'Forgets the server processes that have not written for five minutes, with their sessions. Returns how many. Writes gateways, endpoint_presence.';
