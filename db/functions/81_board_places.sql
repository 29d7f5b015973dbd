-- The board's places: endpoints, receivers and hooks, and the page of one endpoint.
--
-- A page is a function of the human, of what the page was asked (p_args: its query, and what its address names)
-- and of an instant: board_endpoints, board_endpoint_page, board_receivers, board_hooks. It answers with one
-- document (py/tests/board/README.md has its shape), every field always there; what is on every page is added by
-- whoever calls it. Everything is found from the endpoints of the human: what is somebody else's is not_found,
-- as what never was.
-- A page that is looked at is made anew whenever something changed, so that it costs the same however much there
-- is: lists are bounded, and counts stop at a bound, which then stands for "at least".
-- They only read, and lock nothing. Presence is as of the last write of each server (functions/presence).

create or replace function switchboard.board_place(p_human_id uuid, p_slug text) returns switchboard.endpoints
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints;
begin
    select * into v_endpoint from endpoints e where e.slug = p_slug and e.human_id = p_human_id;
    if not found then
        perform refuse('not_found', 'there is no such endpoint: the page of all endpoints shows yours');
    end if;
    return v_endpoint;
end $$;
comment on function switchboard.board_place(uuid, text) is 'The endpoint of the human with this slug. Errors: not_found, for foreign and unknown ones alike. Reads endpoints.';

create or replace function switchboard.board_verbs() returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_agg(jsonb_build_object('name', r.name, 'default', r.name = any (default_verbs())) order by r.position) from tool_register r
$$;
comment on function switchboard.board_verbs() is 'The verbs that can be granted, for the forms: [{name, default}], in the order of tools/list. Reads tool_register.';

create or replace function switchboard.board_pending(p_endpoint_id uuid, p_queue text, p_most integer) returns integer
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return least(p_most,
        (select count(*) from (select from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is null limit p_most) p)
        + (select count(*) from (select from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is not null limit p_most) a));
end $$;
comment on function switchboard.board_pending(uuid, text, integer) is 'How many todos of the queue are pending, assigned ones included, counted to p_most at the most. Reads todos.';

create or replace function switchboard.board_oldest_pending(p_endpoint_id uuid, p_queue text) returns timestamptz
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return least(
        (select t.created_at from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is null
         order by t.created_at, t.id limit 1),
        (select min(a.created_at) from (
            select t.created_at from todos t where t.endpoint_id = p_endpoint_id and t.queue = p_queue and t.state = 'pending' and t.assignee is not null limit 10000) a));
end $$;
comment on function switchboard.board_oldest_pending(uuid, text) is 'When the oldest pending todo of the queue was created, of assigned ones looked for among 10,000; NULL: there is none. Reads todos.';

create or replace function switchboard.board_quarantined(p_human_id uuid, p_most integer)
returns table (webhook_id uuid, waiting integer)
language sql stable set search_path = switchboard, pg_temp
as $$
    -- the key of a delivery's todo begins with its receiver
    select as_uuid(left(q.idempotency_key, 36)), count(*)::integer
    from (select t.idempotency_key from endpoints e join queue_marks m on m.endpoint_id = e.id and m.queue = 'quarantine'
          cross join lateral (
              select t.idempotency_key from todos t
              where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'pending' and t.assignee is null limit p_most) t
          where e.human_id = p_human_id limit p_most) q
    group by 1
$$;
comment on function switchboard.board_quarantined(uuid, integer) is 'How many todos wait in quarantine of each receiver, on all endpoints of the human; p_most are looked at. Reads endpoints, queue_marks, todos.';

create or replace function switchboard.board_endpoint_row(p_endpoint switchboard.endpoints, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_id       uuid        := p_endpoint.id;
    v_seen     timestamptz := last_seen(v_id);
    v_attached integer     := streams_of(v_id, p_now);
    v_waiting  bigint;
    v_dead     bigint;
begin
    select count(*) into v_waiting from (
        select from queue_marks m cross join lateral (
            select from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'pending' and t.assignee is null limit 10000) t
        where m.endpoint_id = v_id and m.queue <> 'quarantine' limit 10000) w;
    select v_waiting + count(*) into v_waiting from (
        select from todos t where t.endpoint_id = v_id and t.state = 'pending' and t.assignee is not null limit 10000) a;
    select count(*) into v_dead from (
        select from queue_marks m cross join lateral (
            select from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null limit 10000) t
        where m.endpoint_id = v_id and m.queue <> 'quarantine' limit 10000) d;
    return jsonb_build_object(
        'id', v_id, 'slug', p_endpoint.slug, 'line', board_line(p_endpoint, v_seen, v_attached, p_now), 'attached', v_attached,
        'last_seen', board_time(v_seen, p_now), 'expires', board_time(p_endpoint.expires_at, p_now), 'revoked', board_time(p_endpoint.revoked_at, p_now),
        'created', board_time(p_endpoint.created_at, p_now), 'queues', p_endpoint.queues[1:8],
        'queues_more', greatest(0, cardinality(p_endpoint.queues) - 8), 'waiting', least(v_waiting, 10000), 'dead', v_dead,
        'connected', (select count(*) from (select from todos t where t.endpoint_id = v_id and t.state = 'claimed' limit 10000) c),
        'receivers', (select count(*) from endpoint_webhooks w where w.endpoint_id = v_id),
        'hooks', (select count(*) from notify_hooks h where h.endpoint_id = v_id),
        'budgets', (select count(*) from admission_policies p where p.endpoint_id = v_id));
end $$;
comment on function switchboard.board_endpoint_row(switchboard.endpoints, timestamptz) is
'An endpoint in the list of all: its line, its queues, and how many todos wait, are held and are dead letters (counted to 10,000), receivers, hooks and budgets it has. Reads todos, queue_marks, endpoint_webhooks, notify_hooks, admission_policies, and for the line presence.';

create or replace function switchboard.board_endpoints(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_after text := nullif(p_args ->> 'after', '');
    v_rows  jsonb[];
begin
    v_rows := array(
        select board_endpoint_row(e, p_now) from endpoints e
        where e.human_id = p_human_id and (v_after is null or e.slug > v_after) order by e.slug limit 51);
    return jsonb_build_object(
        'endpoints', to_jsonb(v_rows[:50]), 'next', case when cardinality(v_rows) > 50 then v_rows[50] -> 'slug' end, 'after', v_after,
        'verbs', board_verbs(), 'form', jsonb_build_object(
            'slug', '', 'queues', '', 'verbs', default_verbs(), 'webhook_max', '1', 'days', '', 'error', null, 'field', null));
end $$;
comment on function switchboard.board_endpoints(uuid, jsonb, timestamptz) is
'The page of all endpoints of the human, by slug, 50 at a time; p_args: after, the last slug of the page before. With what is in the form to vend one. Reads endpoints, tool_register and what board_endpoint_row reads.';

create or replace function switchboard.board_routes(p_endpoint_id uuid, p_webhook_id uuid, p_queue text, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object('slug', e.slug, 'live', may_take(e, p_queue, p_now)) order by e.slug), '[]')
    from webhook_routes r join endpoints e on e.id = r.target_endpoint_id
    where r.endpoint_id = p_endpoint_id and r.webhook_id = p_webhook_id
$$;
comment on function switchboard.board_routes(uuid, uuid, text, timestamptz) is 'Where else a receiver''s deliveries go: [{slug, live (whether it takes them now)}]. Reads webhook_routes, endpoints.';

create or replace function switchboard.last_delivery(p_endpoint_id uuid, p_webhook_id uuid) returns timestamptz
language sql stable set search_path = switchboard, pg_temp
as $$
    select max(n.received_at)
    from (select p_endpoint_id as id union all
          select r.target_endpoint_id from webhook_routes r where r.endpoint_id = p_endpoint_id and r.webhook_id = p_webhook_id) t
    cross join lateral (
        select v.received_at from events v where v.endpoint_id = t.id and v.webhook_id = p_webhook_id order by v.id desc limit 1) n
$$;
comment on function switchboard.last_delivery(uuid, uuid) is 'When the newest delivery of a receiver that is still kept came, on its owner or a route; NULL: none. Reads events, webhook_routes.';

create or replace function switchboard.board_receiver_rows(p_human_id uuid, p_endpoint_id uuid, p_before uuid, p_limit integer, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    with last as materialized (
        select w.created_at, w.id from endpoints e join endpoint_webhooks w on w.endpoint_id = e.id where e.human_id = p_human_id and w.id = p_before
    ), newest as materialized (
        select w.*, e.slug, is_active(e.revoked_at, e.expires_at, p_now) as live
        from endpoints e join endpoint_webhooks w on w.endpoint_id = e.id
        where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id)
          and coalesce((w.created_at, w.id) < (select l.created_at, l.id from last l), true)
        order by w.created_at desc, w.id desc limit p_limit
    ), page as materialized (  -- a page is not to grow with the routes: 300 at the most
        select n.* from (
            select w.*, sum((select count(*) from webhook_routes r where r.endpoint_id = w.endpoint_id and r.webhook_id = w.id))
                            over (order by w.created_at desc, w.id desc) as routes from newest w) n
        where n.routes <= 300
    ), waiting as materialized (
        select q.* from board_quarantined(p_human_id, 10000) q
    )
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', w.id, 'endpoint', jsonb_build_object('id', w.endpoint_id, 'slug', w.slug), 'source_type', w.source_type, 'target_queue', w.target_queue,
        'trust_mode', w.trust_mode, 'held', w.held, 'routes', board_routes(w.endpoint_id, w.id, w.target_queue, p_now), 'live', w.live,
        'previous_valid_until', case when w.previous_valid_until > p_now then board_time(w.previous_valid_until, p_now) end,
        'created', board_time(w.created_at, p_now), 'last_delivery', board_time(last_delivery(w.endpoint_id, w.id), p_now),
        'quarantined', coalesce((select least(q.waiting, 1000) from waiting q where q.webhook_id = w.id), 0)) order by w.created_at desc, w.id desc), '[]')
    from page w
$$;
comment on function switchboard.board_receiver_rows(uuid, uuid, uuid, integer, timestamptz) is
'Up to p_limit receivers of the human that have 300 routes together at the most, newest first, as the pages show them; p_endpoint_id: of this endpoint only; p_before: older than this receiver only. Todos in quarantine are counted to 1,000. Reads endpoints, endpoint_webhooks, webhook_routes, events, todos.';

create or replace function switchboard.board_receivers(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_rows jsonb := board_receiver_rows(p_human_id, null, as_uuid(p_args ->> 'before'), 50, p_now);
    v_last uuid  := (v_rows -> -1 ->> 'id')::uuid;
begin
    return jsonb_build_object('receivers', v_rows, 'next', case when board_receiver_rows(p_human_id, null, v_last, 1, p_now) <> '[]' then v_last end);
end $$;
comment on function switchboard.board_receivers(uuid, jsonb, timestamptz) is
'The page of the receivers of the human, newest first, up to 50 at a time; p_args: before, the last id of the page before. Reads what board_receiver_rows reads.';

create or replace function switchboard.board_hook_rows(p_human_id uuid, p_endpoint_id uuid, p_limit integer, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    with page as materialized (
        select h.*, hook_health(h) as health, e.slug, row_number() over (order by array_position('{off,failing,unsigned,ok}', hook_health(h)), e.slug, h.created_at, h.id) as place
        from endpoints e join notify_hooks h on h.endpoint_id = e.id
        where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id)
        order by place limit p_limit
    )
    select coalesce(jsonb_agg(jsonb_build_object(
        'id', h.id, 'endpoint', jsonb_build_object('id', h.endpoint_id, 'slug', h.slug), 'url', h.url, 'queues', h.queues, 'health', h.health,
        'failures', h.failures, 'disabled', board_time(h.disabled_at, p_now), 'last_delivered', board_time(h.last_delivered_at, p_now),
        'last_failed', board_time(h.last_failed_at, p_now), 'last_status', h.last_status, 'created', board_time(h.created_at, p_now),
        'waiting', (select count(*) from (select from notify_deliveries d where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.due_at is not null limit 1000) d))
        order by h.place), '[]')
    from page h
$$;
comment on function switchboard.board_hook_rows(uuid, uuid, integer, timestamptz) is
'Up to p_limit hooks of the human as the pages show them, those in trouble first; p_endpoint_id: of this endpoint only. Calls that wait are counted to 1,000. Reads endpoints, notify_hooks, notify_deliveries.';

create or replace function switchboard.board_hooks(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('hooks', board_hook_rows(p_human_id, null, 50, p_now), 'hooks_more', (
        select greatest(0, count(*) - 50) from endpoints e join notify_hooks h on h.endpoint_id = e.id where e.human_id = p_human_id))
$$;
comment on function switchboard.board_hooks(uuid, jsonb, timestamptz) is
'The page of the hooks of the human, 50 at the most: those in trouble first, then by endpoint; hooks_more: how many others the pages of their endpoints show. p_args: nothing is asked. Reads what board_hook_rows reads.';

create or replace function switchboard.board_endpoint_details(p_endpoint switchboard.endpoints, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid := p_endpoint.id;
begin
    return jsonb_build_object(
        'created', board_time(p_endpoint.created_at, p_now), 'updated', board_time(p_endpoint.updated_at, p_now), 'verbs', p_endpoint.verbs,
        'webhook_max', p_endpoint.webhook_max, 'webhook_source_types', p_endpoint.webhook_source_types, 'default_lease_seconds', p_endpoint.default_lease_seconds,
        'live_todos', (select count(*) from (select from todos t where t.endpoint_id = v_id and t.state = 'pending' and t.assignee is null limit 100000) p)
                    + (select count(*) from (select from todos t where t.endpoint_id = v_id and t.state = 'pending' and t.assignee is not null limit 100000) a)
                    + (select count(*) from (select from todos t where t.endpoint_id = v_id and t.due_at is not null limit 100000) d),
        'credentials', coalesce((
            select jsonb_agg(jsonb_build_object('created', board_time(c.created_at, p_now), 'expires', board_time(c.expires_at, p_now)) order by c.created_at, c.id)
            from (select * from credentials k where k.endpoint_id = v_id and (k.expires_at is null or k.expires_at > p_now) order by k.created_at desc limit 50) c), '[]'));
end $$;
comment on function switchboard.board_endpoint_details(switchboard.endpoints, timestamptz) is
'What only the page of an endpoint shows of it: its grant, its credentials that are valid (when each was made and ends), and how many todos its revocation would dead-letter (counted to 100,000 of a kind). Reads todos, credentials.';

create or replace function switchboard.board_endpoint_page(p_human_id uuid, p_args jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := board_place(p_human_id, p_args ->> 'slug');
begin
    return jsonb_build_object(
        'endpoint', board_endpoint(v_endpoint, p_now) || board_endpoint_details(v_endpoint, p_now),
        'sessions', coalesce((
            select jsonb_agg(jsonb_build_object('client', s.client, 'since', board_time(s.since, p_now), 'stream', s.stream) order by s.since, s.client)
            from (select * from sessions_of(v_endpoint.id, p_now) limit 50) s), '[]'),
        'receivers', board_receiver_rows(p_human_id, v_endpoint.id, null, 20, p_now),
        'hooks', board_hook_rows(p_human_id, v_endpoint.id, 50, p_now),
        'verbs', board_verbs(),
        'form', jsonb_build_object('queues', array_to_string(v_endpoint.queues, E'\n'), 'verbs', v_endpoint.verbs,
                                   'webhook_max', v_endpoint.webhook_max::text, 'error', null, 'field', null));
end $$;
comment on function switchboard.board_endpoint_page(uuid, jsonb, timestamptz) is
'The page of one endpoint; p_args: slug. The endpoint as on the exchange and with its grant, its sessions, receivers (the newest 20) and hooks, and what is in the form of the grant. Errors: not_found. Reads endpoints, credentials, todos, endpoint_webhooks, notify_hooks, presence.';
