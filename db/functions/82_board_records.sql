-- The board's records: deliveries and what became of them, the budget of a queue, the health of the installation.
--
-- Page functions as in functions/board_places: board_deliveries, board_delivery, board_budget, board_health. They
-- show what the functions that REST and the command line use show, bounded for a page.
-- A delivery that fans out is a row a target; a page never ends within one, since the next begins below its id.
-- What waits in quarantine is found from its todos, not by looking through all deliveries; those of one receiver
-- by their index. Local times are those of on_the_clock(); a zone that PostgreSQL no longer knows is shown in UTC.

create or replace function switchboard.delivery_page(p_human_id uuid, p_endpoint_id uuid, p_webhook_id uuid, p_quarantine boolean, p_before uuid)
returns setof switchboard.events
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_below uuid := coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
begin
    if p_quarantine then
        return query
            select v.* from endpoints e cross join lateral (
                select d.* from todos t join events d on d.endpoint_id = t.endpoint_id and d.id = t.event_id and d.todo_id = t.id
                where t.endpoint_id = e.id and t.queue = 'quarantine' and t.state = 'pending' and t.assignee is null
                  and (p_webhook_id is null or d.webhook_id = p_webhook_id)
                  and (p_before is null or t.created_at < id_time(p_before) + interval '1 second' and d.id < p_before)
                order by t.created_at desc fetch first 50 rows with ties) v  -- as events are ordered, but for those of one microsecond
            where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id)
            order by v.id desc fetch first 50 rows with ties;
    elsif p_webhook_id is not null then
        return query
            select v.* from endpoints e cross join lateral (
                select * from events d where d.endpoint_id = e.id and d.webhook_id = p_webhook_id and d.id < v_below order by d.id desc limit 50) v
            where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id)
            order by v.id desc fetch first 50 rows with ties;
    else
        return query
            select v.* from endpoints e cross join lateral (
                select * from events d where d.endpoint_id = e.id and d.id < v_below order by d.id desc limit 50) v
            where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id)
            order by v.id desc fetch first 50 rows with ties;  -- never a part of a delivery: the next page begins below it
    end if;
end $$;
comment on function switchboard.delivery_page(uuid, uuid, uuid, boolean, uuid) is
'The newest 50 deliveries of the human''s endpoints, one row a target, those of the last delivery all. p_endpoint_id, p_webhook_id: only theirs, NULL: all; p_quarantine: only those whose todo waits in quarantine; p_before: only ids below. Reads endpoints, events, todos.';

create or replace function switchboard.board_deliveries(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_slug       text    := nullif(p_args ->> 'endpoint', '');
    v_quarantine boolean := coalesce(nullif(p_args ->> 'quarantine', ''), 'false') not in ('false', '0');
    v_endpoint   uuid    := case when v_slug is not null then (board_place(p_human_id, v_slug)).id end;
    v_asked      text    := left(nullif(p_args ->> 'receiver', ''), 100);
    v_receiver   uuid    := case when v_asked is not null then coalesce(as_uuid(v_asked), '00000000-0000-0000-0000-000000000000') end;  -- what is no id: as an unknown one
    v_before     uuid    := as_uuid(p_args ->> 'before');
    v_rows       jsonb;
    v_last       uuid;
begin
    v_rows := board_delivery_rows(p_human_id, v_endpoint, v_receiver, v_quarantine, v_before, p_now);
    v_last := (v_rows -> 49 ->> 'id')::uuid;  -- those after it are of the same delivery
    return jsonb_build_object(
        'deliveries', v_rows,
        'next', case when v_last is not null and exists (select from delivery_page(p_human_id, v_endpoint, v_receiver, v_quarantine, v_last)) then v_last end,
        'filter', jsonb_build_object('endpoint', v_slug, 'receiver', v_asked, 'quarantine', v_quarantine, 'before', v_before),
        'quarantined', (select coalesce(sum(q.waiting), 0) from board_quarantined(p_human_id, 1000) q),
        'choices', jsonb_build_object('endpoints', to_jsonb(array(select e.slug from endpoints e where e.human_id = p_human_id order by e.slug limit 100))));
end $$;
comment on function switchboard.board_deliveries(uuid, jsonb, timestamptz) is
'The page of deliveries to the endpoints of the human, newest first, about 50 at a time. p_args: endpoint (slug), receiver (id), quarantine (those whose todo waits there), before (the last id of the page before). Errors: not_found (an endpoint that is not theirs). Reads events, todos, endpoints, admission_policies.';

create or replace function switchboard.board_delivery_rows(
    p_human_id uuid, p_endpoint_id uuid, p_webhook_id uuid, p_quarantine boolean, p_before uuid, p_now timestamptz)
returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    with page as materialized (
        select v.id, v.endpoint_id, v.todo_id, v.webhook_id, v.source_type, v.event_type, v.delivery_id, v.trust_mode, v.queue, v.received_at,
               octet_length(v.body) as bytes, e.slug
        from delivery_page(p_human_id, p_endpoint_id, p_webhook_id, p_quarantine, p_before) v join endpoints e on e.id = v.endpoint_id
    ), made as materialized (
        select t as todo, t.endpoint_id, t.id, t.queue, t.state from page p join todos t on t.endpoint_id = p.endpoint_id and t.id = p.todo_id
    ), shut as materialized (
        select q.* from (select distinct m.endpoint_id, m.queue from made m where m.state = 'pending') q where is_deferred(q.endpoint_id, q.queue, p_now)
    )
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', p.id, 'endpoint', jsonb_build_object('id', p.endpoint_id, 'slug', p.slug), 'webhook_id', p.webhook_id, 'source_type', p.source_type,
        'event_type', p.event_type, 'delivery_id', p.delivery_id, 'trust_mode', p.trust_mode, 'verified', is_verified(p.trust_mode), 'queue', p.queue,
        'bytes', p.bytes, 'received', board_time(p.received_at, p_now), 'todo', case when m.id is not null then jsonb_build_object(
            'id', m.id, 'state', board_state(m.todo, s.queue is not null), 'title', left((m.todo).title, 160)) end) order by p.id desc, p.slug), '[]')
    from page p left join made m on m.endpoint_id = p.endpoint_id and m.id = p.todo_id
    left join shut s on s.endpoint_id = m.endpoint_id and s.queue = m.queue
$$;
comment on function switchboard.board_delivery_rows(uuid, uuid, uuid, boolean, uuid, timestamptz) is
'The rows of delivery_page() as the page shows them, each with its todo as far as that is kept. Reads events, endpoints, todos, admission_policies.';

create or replace function switchboard.board_delivery(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_event events := one_event(p_args ->> 'id', p_human_id);
begin
    return jsonb_build_object('delivery', jsonb_build_object(
        'id', v_event.id, 'webhook_id', v_event.webhook_id, 'receiver_live', (webhook_of(v_event.webhook_id, p_human_id)).id is not null,
        'source_type', v_event.source_type, 'event_type', v_event.event_type, 'delivery_id', v_event.delivery_id, 'trust_mode', v_event.trust_mode,
        'verified', is_verified(v_event.trust_mode), 'verification', v_event.verification, 'queue', v_event.queue, 'content_type', v_event.content_type,
        'bytes', octet_length(v_event.body), 'received', board_time(v_event.received_at, p_now), 'headers', v_event.headers, 'body', board_body(v_event),
        'targets', to_jsonb(array(select e.slug from unnest(replay_targets(v_event, p_human_id, null)) e order by e.slug)))
        || board_outcome(p_human_id, v_event.id, p_now));
end $$;
comment on function switchboard.board_delivery(uuid, jsonb, timestamptz) is
'The page of one delivery; p_args: id. How it came and was verified, the beginning of its body, the todos made of it, its replays, and where a replay would go. Errors: not_found. Reads events, todos, endpoints, endpoint_webhooks, webhook_routes, webhook_audit.';

create or replace function switchboard.board_body(p_event switchboard.events) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_text text := event_piece(p_event, 0, 16384) ->> 'text';
begin
    return jsonb_build_object('bytes', octet_length(p_event.body), 'binary', v_text is null,
        'cut', octet_length(p_event.body) > 16384 or coalesce(length(v_text) > length(board_cut(v_text)), false),
        'text', coalesce(board_cut(v_text), rtrim(regexp_replace(encode(substring(p_event.body for 16384), 'hex'), '(.{64})', E'\\1\n', 'g'), E'\n')));
end $$;
comment on function switchboard.board_body(switchboard.events) is
'The beginning of a delivery''s body, 16,384 bytes of it, or what board_cut leaves of them: {text, cut (there is more), binary, bytes}; what is not UTF-8 in hexadecimal, 32 bytes a line.';

create or replace function switchboard.board_outcome(p_human_id uuid, p_event_id uuid, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    with replays as materialized (
        select a.*, e.slug from endpoints e cross join lateral (
            select * from webhook_audit l where l.endpoint_id = e.id and l.event_id = p_event_id and l.action = 'replayed' order by l.id desc limit 50) a
        where e.human_id = p_human_id order by a.id desc limit 50
    ), made as (  -- what a replay found live may be of another delivery
        select v.endpoint_id, v.todo_id from event_rows(p_event_id::text, p_human_id) v
        union
        select r.endpoint_id, r.todo_id from replays r where r.detail -> 'created' = 'true'
    ), kept as materialized (
        select t as todo, t.id, t.endpoint_id, t.queue, t.title, t.created_at, e.slug, t.state = 'pending' and is_deferred(t.endpoint_id, t.queue, p_now) as deferred
        from made m join todos t on t.endpoint_id = m.endpoint_id and t.id = m.todo_id join endpoints e on e.id = t.endpoint_id
        order by t.id desc limit 50
    )
    select jsonb_build_object(
        'todos', coalesce((select jsonb_agg(jsonb_build_object(
                'id', k.id, 'endpoint', jsonb_build_object('id', k.endpoint_id, 'slug', k.slug), 'queue', k.queue, 'state', board_state(k.todo, k.deferred),
                'title', k.title, 'created', board_time(k.created_at, p_now)) order by k.id) from kept k), '[]'),
        'replays', coalesce((select jsonb_agg(jsonb_build_object(
                'actor', r.actor, 'at', board_time(r.at, p_now), 'endpoint', jsonb_build_object('id', r.endpoint_id, 'slug', r.slug), 'todo_id', r.todo_id,
                'created', coalesce(r.detail -> 'created', 'false')) order by r.id) from replays r), '[]'))
$$;
comment on function switchboard.board_outcome(uuid, uuid, timestamptz) is
'What became of a delivery on the human''s endpoints: {todos, replays}, the newest 50 of each, oldest first. Reads events, webhook_audit, todos, endpoints, admission_policies.';

create or replace function switchboard.board_local(p_at timestamptz, p_tz text) returns text
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return on_the_clock(p_at, p_tz);
exception when invalid_parameter_value then  -- a zone that is gone
    return on_the_clock(p_at, 'UTC') || ' UTC';
end $$;
comment on function switchboard.board_local(timestamptz, text) is 'on_the_clock(), or the clock of UTC, which then says so, where PostgreSQL does not know the zone.';

create or replace function switchboard.board_zones() returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select '["UTC", "Africa/Cairo", "Africa/Johannesburg", "Africa/Lagos", "Africa/Nairobi", "America/Anchorage", "America/Argentina/Buenos_Aires", "America/Bogota",
             "America/Chicago", "America/Denver", "America/Halifax", "America/Los_Angeles", "America/Mexico_City", "America/New_York", "America/Phoenix", "America/Santiago",
             "America/Sao_Paulo", "America/Toronto", "America/Vancouver", "Asia/Bangkok", "Asia/Dubai", "Asia/Hong_Kong", "Asia/Jakarta", "Asia/Jerusalem", "Asia/Karachi",
             "Asia/Kolkata", "Asia/Seoul", "Asia/Shanghai", "Asia/Singapore", "Asia/Tokyo", "Australia/Perth", "Australia/Sydney", "Europe/Berlin", "Europe/Istanbul",
             "Europe/London", "Europe/Madrid", "Europe/Moscow", "Europe/Paris", "Europe/Warsaw", "Pacific/Auckland", "Pacific/Honolulu"]'::jsonb
$$;
comment on function switchboard.board_zones() is 'Well-known zones to choose from in the form of a budget, by name; any other that PostgreSQL knows may be typed.';

create or replace function switchboard.board_budget(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := board_place(p_human_id, p_args ->> 'slug');
    v_queue    text      := p_args ->> 'queue';
    v_granted  boolean   := coalesce(v_queue = any (v_endpoint.queues), false);
    v_audit    jsonb     := board_policy_audit(v_endpoint.id, v_queue, p_now);
    v_policy   admission_policies;
begin
    select * into v_policy from admission_policies p where p.endpoint_id = v_endpoint.id and p.queue = v_queue;
    if not v_granted and v_policy.id is null and v_audit = '[]' then
        perform refuse('not_found', 'there is no such queue: the page of the endpoint shows its queues');
    end if;
    return jsonb_build_object(
        'endpoint', jsonb_build_object('id', v_endpoint.id, 'slug', v_endpoint.slug,
                                       'line', board_line(v_endpoint, last_seen(v_endpoint.id), streams_of(v_endpoint.id, p_now), p_now)),
        'queue', v_queue, 'granted', v_granted, 'admission', board_admission_whole(v_policy, p_now), 'policy', policy_json(v_policy),
        'windows', board_windows(v_policy, p_now), 'audit', v_audit, 'zones', board_zones(),
        'form', jsonb_build_object(
            'max_in_flight', coalesce(v_policy.max_in_flight::text, ''), 'max_claims_per_window', coalesce(v_policy.max_claims_per_window::text, ''),
            'period', coalesce(v_policy.window_period, 'day'), 'tz', coalesce(v_policy.window_tz, ''), 'start', coalesce(v_policy.window_start, '00:00'),
            'weekday', coalesce(v_policy.window_weekday, 'Mon'), 'error', null, 'field', null));
end $$;
comment on function switchboard.board_budget(uuid, jsonb, timestamptz) is
'The page of the budget of a queue; p_args: slug, queue. How it stands, its windows, who changed it, and what is in its form. Errors: not_found, also for a queue that is not granted and never had a budget. Reads endpoints, admission_policies, admission_windows, admission_policy_audit, todos, humans, presence.';

create or replace function switchboard.board_admission_whole(p_policy switchboard.admission_policies, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_admission jsonb := board_admission(p_policy.endpoint_id, p_policy.queue, p_now);
    v_used      integer := (v_admission ->> 'used')::integer;
    v_started   timestamptz;
begin
    if v_admission is null then
        return null;
    end if;
    v_started := (admission_state(p_policy, p_now)).window_start;
    return v_admission || jsonb_build_object(
        'pending', board_pending(p_policy.endpoint_id, p_policy.queue, 100000), 'remaining', greatest(p_policy.max_claims_per_window - v_used, 0 * v_used),
        'charged', p_policy.charged, 'updated', board_time(p_policy.updated_at, p_now),
        'updated_by', (select h.name from humans h where h.id = p_policy.updated_by_human_id), 'window_started', board_time(v_started, p_now));
end $$;
comment on function switchboard.board_admission_whole(switchboard.admission_policies, timestamptz) is
'board_admission of a policy, and what only its page shows: todos that are pending (counted to 100,000), claims left in the window, claims ever, who changed it last and when, and when the window began; NULL for none. Reads admission_policies, admission_windows, todos, humans.';

create or replace function switchboard.board_windows(p_policy switchboard.admission_policies, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_current timestamptz;
begin
    if p_policy.max_claims_per_window is null then
        return '[]';
    end if;
    v_current := (admission_state(p_policy, p_now)).window_start;
    return coalesce((
        select jsonb_agg(jsonb_build_object(
            'start', board_time(w.window_start, p_now), 'start_local', board_local(w.window_start, p_policy.window_tz), 'used', w.used,
            'limit', p_policy.max_claims_per_window, 'current', w.window_start is not distinct from v_current) order by w.window_start desc)
        from (select * from admission_windows k where k.endpoint_id = p_policy.endpoint_id and k.policy_id = p_policy.id order by k.window_start desc limit 30) w), '[]');
end $$;
comment on function switchboard.board_windows(switchboard.admission_policies, timestamptz) is
'The newest 30 windows in which the policy admitted something: [{start, start_local, used, limit (that of now), current}], newest first; none for a policy without windows. Reads admission_windows.';

create or replace function switchboard.board_policy_audit(p_endpoint_id uuid, p_queue text, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
        'at', board_time(a.at, p_now), 'action', a.action, 'human', h.name, 'endpoint', n.slug, 'before', a.before, 'after', a.after) order by a.at desc, a.id desc), '[]')
    from (select * from admission_policy_audit k where k.endpoint_id = p_endpoint_id and k.queue = p_queue order by k.at desc, k.id desc limit 20) a
    left join humans h on h.id = a.actor_human_id left join endpoints n on n.id = a.actor_endpoint_id
$$;
comment on function switchboard.board_policy_audit(uuid, text, timestamptz) is
'The newest 20 changes of the budget of a queue: [{at, action, human, endpoint (whose agent did it, or null), before, after}], newest first. Reads admission_policy_audit, humans, endpoints.';

create or replace function switchboard.board_fact(p_name text, p_value text, p_level text default 'ok', p_note text default null) returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('name', p_name, 'value', p_value, 'level', p_level, 'note', p_note)
$$;
comment on function switchboard.board_fact(text, text, text, text) is 'A fact of the page of health; p_level: ok, warning or error; p_note: what to do, or NULL.';

create or replace function switchboard.board_facts(p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_notes numeric     := round(pg_notification_queue_usage()::numeric * 100, 1);
    v_clock timestamptz := (select s.test_now from settings s);
begin
    return jsonb_build_array(
        board_fact('PostgreSQL', split_part(current_setting('server_version'), ' ', 1)),
        board_fact('Servers', (select count(*)::text || ' with sessions' from gateways g where g.seen_at > p_now - interval '45 seconds')),
        board_fact('Notifications that wait', v_notes || ' %', case when v_notes > 50 then 'error' when v_notes > 10 then 'warning' else 'ok' end,
                   case when v_notes > 10 then 'some session listens and has an open transaction: end it' end))
        || case when v_clock is null then '[]' else jsonb_build_array(
               board_fact('Clock', 'set by hand', 'warning', 'this is a test database: its time stands still until somebody moves it')) end;
end $$;
comment on function switchboard.board_facts(timestamptz) is 'What the database says of itself, for the page of health: [{name, value, level, note}]; the server adds what it knows. Reads gateways, settings.';

create or replace function switchboard.board_health(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(
        'sweeps', (
            select jsonb_agg(jsonb_build_object(
                'name', s.name, 'last_run', case when s.last_run_at > 'epoch' then board_time(s.last_run_at, p_now) end, 'count', s.last_count, 'error', s.last_error,
                'level', case when s.last_error is not null then 'error' when s.last_run_at = 'epoch' then 'never'
                              when s.last_run_at < p_now - interval '90 seconds' then 'late' else 'ok' end) order by array_position(sweep_names(), s.name))
            from sweeps s),
        'stalled', coalesce((
            select jsonb_agg(jsonb_build_object(
                'endpoint', jsonb_build_object('id', l.endpoint_id, 'slug', l.slug), 'queue', l.queue, 'waiting', board_pending(l.endpoint_id, l.queue, 10000),
                'oldest_waiting', board_time(board_oldest_pending(l.endpoint_id, l.queue), p_now), 'nudges', l.nudges,
                'last_nudged', board_time(l.last_nudged_at, p_now), 'next_nudge', l.stall -> 'next_nudge', 'progressed', board_time(l.progressed_at, p_now)) order by l.place)
            from (select k.*, e.slug, coalesce(board_stall(k, p_now), '{"next_nudge": null}') as stall,
                         row_number() over (order by k.progressed_at is not null, k.nudges desc, k.last_nudged_at, e.slug, k.queue) as place
                  from endpoints e join queue_stall_nudges k on k.endpoint_id = e.id where e.human_id = p_human_id order by place limit 50) l), '[]'),
        'facts', board_facts(p_now))
$$;
comment on function switchboard.board_health(uuid, jsonb, timestamptz) is
'The page of health; p_args: nothing is asked. When each sweep last ran and how it ended, the queues of the human that were nudged (those without progress first, 50), and facts of the database. Reads sweeps, queue_stall_nudges, endpoints, todos, gateways.';
