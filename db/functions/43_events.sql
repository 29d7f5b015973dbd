-- Events: the deliveries that were taken, for the people who look after them.
--
-- An operator lists and reads deliveries, sees how each was verified and which todos were made of it, and
-- replays one: to the targets its receiver has now, or, when the receiver is gone, to the endpoints that
-- got it. A replay is a delivery like any other: where a todo with its key is live, that one stands.
-- A receiver may be held: its deliveries then wait in the queue quarantine, which no grant can contain, so
-- that no agent sees or claims them and nothing rings. An operator releases each to the queue it was meant
-- for, or discards it (a dead letter; only a replay brings the delivery back).
-- Who did what is in webhook_audit. With a human: that human's endpoints only; NULL: all, for members of
-- switchboard_operator. Lock order: the receiver, then todos in order of endpoint.

create or replace function switchboard.webhook_of(p_webhook_id uuid, p_actor_human_id uuid) returns switchboard.endpoint_webhooks
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoint_webhooks;
begin
    select w.* into v_row from endpoints e join endpoint_webhooks w on w.endpoint_id = e.id
    where w.id = p_webhook_id and (p_actor_human_id is null or e.human_id = p_actor_human_id);
    return v_row;
end $$;
comment on function switchboard.webhook_of(uuid, uuid) is 'A receiver of an endpoint of the human (NULL: of any); NULLs when there is none. One probe an endpoint. Reads endpoints, endpoint_webhooks.';

create or replace function switchboard.webhook_endpoint(p_webhook_id text, p_actor_human_id uuid default null) returns text
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks;
begin
    perform acting_owner(p_actor_human_id);
    v_webhook := webhook_of(as_uuid(p_webhook_id), p_actor_human_id);
    if v_webhook.id is null then
        perform refuse('not_found', 'there is no such receiver: list_webhooks shows those of an endpoint');
    end if;
    return v_webhook.endpoint_id::text;
end $$;
comment on function switchboard.webhook_endpoint(text, uuid) is 'The id of the endpoint that owns a receiver, for the functions that take the endpoint. Errors: not_found, forbidden. Reads endpoint_webhooks.';

create or replace function switchboard.hold_webhook(p_webhook_id text, p_held boolean, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_actor    text := acting_owner(p_actor_human_id);
    v_endpoint uuid := webhook_endpoint(p_webhook_id, p_actor_human_id);
begin
    update endpoint_webhooks w set held = coalesce(p_held, false)
    where w.endpoint_id = v_endpoint and w.id = as_uuid(p_webhook_id) and w.held <> coalesce(p_held, false);
    if found then
        perform note_webhook(v_endpoint, as_uuid(p_webhook_id), v_actor, case when p_held then 'held' else 'unheld' end);
    end if;
    return jsonb_build_object('webhook_id', as_uuid(p_webhook_id), 'held', coalesce(p_held, false));
end $$;
comment on function switchboard.hold_webhook(text, boolean, uuid) is
'Holds the deliveries that a receiver takes from now on in the queue quarantine, or no longer (p_held false); what is there stays there until it is released or discarded. Returns webhook_id, held. Errors: not_found, forbidden. Writes endpoint_webhooks, webhook_audit.';

create or replace function switchboard.end_quarantine(p_id text, p_actor_human_id uuid, p_action text) returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_actor   text := acting_owner(p_actor_human_id);
    v_now     timestamptz := clock();
    v_event   events;
    v_todo    todos;
    v_release boolean := p_action = 'released';
begin
    select * into v_todo from todos t
    where t.endpoint_id = endpoint_of(p_id, p_actor_human_id) and t.id = as_uuid(p_id) and t.queue = 'quarantine' for no key update;
    if not found then
        perform refuse('not_found', 'there is no such todo in quarantine: list the todos of the queue quarantine');
    elsif v_todo.state <> 'pending' then
        perform refuse('conflict', 'it is discarded, or its endpoint was revoked: replay its event to bring it back');
    end if;
    select * into v_event from events e where e.endpoint_id = v_todo.endpoint_id and e.id = v_todo.event_id;
    update todos t
    set queue = case when v_release then v_event.queue else t.queue end,
        state = case when v_release then t.state else 'failed' end,
        completed_at = case when not v_release then v_now end,
        result = case when not v_release then jsonb_build_object('discarded_by', v_actor) end, updated_at = v_now
    where t.endpoint_id = v_todo.endpoint_id and t.id = v_todo.id
    returning * into v_todo;
    if v_release then
        perform wake_queue(v_todo.endpoint_id, v_todo.queue, v_todo.created_at, array[v_todo.id], 'created');
    end if;
    perform note_webhook(v_todo.endpoint_id, v_event.webhook_id, v_actor, p_action, v_event.id, v_todo.id);
    return show(v_todo);
end $$;
comment on function switchboard.end_quarantine(text, uuid, text) is 'Takes a todo out of quarantine; p_action: released, to the queue it was meant for, or discarded.';

create or replace function switchboard.release_quarantined(p_id text, p_actor_human_id uuid default null) returns switchboard.todo
language sql volatile security definer set search_path = switchboard, pg_temp
as $$ select end_quarantine(p_id, p_actor_human_id, 'released') $$;
comment on function switchboard.release_quarantined(text, uuid) is
'Puts a todo that is held in quarantine on the queue its delivery was meant for. Returns the todo. Errors: not_found, conflict (discarded before), forbidden. Notifies todo_ready and the hooks. Writes todos, queue_marks, notify_deliveries, webhook_audit.';

create or replace function switchboard.discard_quarantined(p_id text, p_actor_human_id uuid default null) returns switchboard.todo
language sql volatile security definer set search_path = switchboard, pg_temp
as $$ select end_quarantine(p_id, p_actor_human_id, 'discarded') $$;
comment on function switchboard.discard_quarantined(text, uuid) is
'Ends a todo that is held in quarantine as a dead letter that no retry brings back; its event stays for its retention and may be replayed. Returns the todo. Errors: not_found, conflict (discarded before), forbidden. Writes todos, webhook_audit.';

create or replace function switchboard.list_events_any_endpoint(
    p_webhook_id text default null, p_limit integer default 50, p_endpoint_id text default null, p_before text default null, p_actor_human_id uuid default null)
returns table (id uuid, endpoint_id uuid, webhook_id uuid, source_type text, event_type text, delivery_id text, trust_mode text, verified boolean,
               queue text, bytes integer, todo_id uuid, todo_state text, title text, received_at timestamptz)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer := check_limit(p_limit, 50, 200);
begin
    perform acting_owner(p_actor_human_id);
    return query
        select v.id, v.endpoint_id, v.webhook_id, v.source_type, v.event_type, v.delivery_id, v.trust_mode, is_verified(v.trust_mode),
               v.queue, octet_length(v.body), v.todo_id, t.state::text, t.title, v.received_at
        from (select n.* from endpoints e cross join lateral (
                  select * from events d
                  where d.endpoint_id = e.id and (p_webhook_id is null or d.webhook_id = as_uuid(p_webhook_id)) and (p_before is null or d.id < as_uuid(p_before))
                  order by d.id desc limit v_limit) n
              where (p_actor_human_id is null or e.human_id = p_actor_human_id) and (p_endpoint_id is null or e.id = as_uuid(p_endpoint_id))
              order by n.id desc fetch first (v_limit) rows with ties) v  -- never a part of a delivery: the next page begins below it
        left join todos t on t.endpoint_id = v.endpoint_id and t.id = v.todo_id
        order by v.id desc, v.endpoint_id;
end $$;
comment on function switchboard.list_events_any_endpoint(text, integer, text, text, uuid) is
'Deliveries of the operator''s endpoints, newest first, one row a target. p_limit: 1..200, above is clamped; the rows of the last delivery come all. p_webhook_id, p_endpoint_id: only theirs; p_before: only ids below (the last of the page before). Errors: invalid_argument, forbidden. Reads events, todos.';

create or replace function switchboard.event_rows(p_id text, p_actor_human_id uuid) returns setof switchboard.events
language sql stable set search_path = switchboard, pg_temp
as $$
    select v.* from endpoints e join events v on v.endpoint_id = e.id
    where v.id = as_uuid(p_id) and (p_actor_human_id is null or e.human_id = p_actor_human_id)
$$;
comment on function switchboard.event_rows(text, uuid) is 'The rows of one delivery on the human''s endpoints (NULL: on all), one a target. Reads endpoints, events.';

create or replace function switchboard.one_event(p_id text, p_actor_human_id uuid) returns switchboard.events
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row events;
begin
    perform acting_owner(p_actor_human_id);
    select * into v_row from event_rows(p_id, p_actor_human_id) v order by v.endpoint_id limit 1;
    if not found then
        perform refuse('not_found', 'there is no such event: list_events_any_endpoint shows what there is');
    end if;
    return v_row;
end $$;
comment on function switchboard.one_event(text, uuid) is 'A delivery as the operator may see it. Errors: not_found, forbidden.';

create or replace function switchboard.get_event_any_endpoint(p_id text, p_actor_human_id uuid default null) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_event   events := one_event(p_id, p_actor_human_id);
    v_todos   jsonb;
    v_replays jsonb;
begin
    with replays as (
        select a.* from endpoints e join webhook_audit a on a.endpoint_id = e.id and a.event_id = v_event.id and a.action = 'replayed'
        where p_actor_human_id is null or e.human_id = p_actor_human_id
    ), made as (  -- what a replay found live may be of another delivery
        select c.endpoint_id, c.todo_id from event_rows(p_id, p_actor_human_id) c
        union select r.endpoint_id, r.todo_id from replays r where r.detail -> 'created' = 'true'
    )
    select (select jsonb_agg(jsonb_build_object('id', t.id, 'endpoint_id', t.endpoint_id, 'slug', e.slug, 'queue', t.queue, 'state', t.state,
                                                'title', t.title, 'created_at', t.created_at) order by t.id)
            from made m join todos t on t.endpoint_id = m.endpoint_id and t.id = m.todo_id join endpoints e on e.id = t.endpoint_id),
           (select jsonb_agg(jsonb_build_object('actor', r.actor, 'at', r.at, 'endpoint_id', r.endpoint_id, 'todo_id', r.todo_id) || r.detail order by r.id) from replays r)
    into v_todos, v_replays;
    return jsonb_build_object(
        'id', v_event.id, 'webhook_id', v_event.webhook_id, 'source_type', v_event.source_type, 'event_type', v_event.event_type,
        'delivery_id', v_event.delivery_id, 'trust_mode', v_event.trust_mode, 'verified', is_verified(v_event.trust_mode),
        'verification', v_event.verification, 'queue', v_event.queue, 'content_type', v_event.content_type, 'bytes', octet_length(v_event.body),
        'headers', v_event.headers, 'received_at', v_event.received_at, 'todos', coalesce(v_todos, '[]'), 'replays', coalesce(v_replays, '[]'));
end $$;
comment on function switchboard.get_event_any_endpoint(text, uuid) is
'A delivery, whole but for its body: headers without secrets, how it was verified, the todos made of it on all targets that are still kept, and its replays. Errors: not_found, forbidden. Reads events, todos, webhook_audit.';

create or replace function switchboard.read_event_any_endpoint(p_id text, p_offset integer default 0, p_limit integer default 16384, p_actor_human_id uuid default null)
returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer := check_limit(p_limit, 16384, 32768);
begin
    perform check_offset(p_offset);
    return event_piece(one_event(p_id, p_actor_human_id), p_offset, v_limit);
end $$;
comment on function switchboard.read_event_any_endpoint(text, integer, integer, uuid) is 'read_event for the operator, also of what is in quarantine. Errors: not_found, invalid_argument, forbidden. Reads events.';

create or replace function switchboard.replay_targets(p_event switchboard.events, p_actor_human_id uuid, p_endpoint_id text) returns switchboard.endpoints[]
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks := webhook_of(p_event.webhook_id, p_actor_human_id);
    v_now     timestamptz := clock();
begin
    return array(
        select e from endpoints e
        where e.id in (select t.id from unnest(live_targets(v_webhook, v_now)) t
                       union all
                       select v.endpoint_id from event_rows(p_event.id::text, p_actor_human_id) v where v_webhook.id is null)
          and may_take(e, p_event.queue, v_now) and (p_endpoint_id is null or e.id = find_endpoint(p_endpoint_id))
        order by e.id);
end $$;
comment on function switchboard.replay_targets(switchboard.events, uuid, text) is
'The endpoints that a replay goes to: the live targets of the receiver, or, when it is gone, the live endpoints that got the delivery; p_endpoint_id: of these only that one.';

create or replace function switchboard.replay_event(p_id text, p_endpoint_id text default null, p_actor_human_id uuid default null) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_actor   text := acting_owner(p_actor_human_id);
    v_event   events := one_event(p_id, p_actor_human_id);
    v_targets endpoints[] := replay_targets(v_event, p_actor_human_id, p_endpoint_id);
    v_parsed  record;
    v_answer  jsonb;
begin
    if v_targets = '{}' then
        perform refuse('conflict', 'the delivery has no active target there: add a route, or widen the grant to its queue');
    end if;
    v_parsed := parse_document(coalesce(v_event.document, body_text(v_event.body)));
    v_answer := spread(v_event, clock(), false, v_targets, v_parsed.document, v_parsed.problem);
    perform note_webhook((t.todo ->> 'endpoint_id')::uuid, v_event.webhook_id, v_actor, 'replayed', v_event.id, (t.todo ->> 'id')::uuid,
                         jsonb_build_object('created', t.todo -> 'created'))
    from jsonb_array_elements(v_answer -> 'todos') t (todo);
    return v_answer - '{verified,trust_mode}'::text[];
end $$;
comment on function switchboard.replay_event(text, text, uuid) is
'Delivers an event again to its targets (p_endpoint_id, an id or slug: to that one only), as if the sender had: where a todo with its key is live, that one stands and created is false. Goes to the queue it was meant for, also while its receiver is held. Returns {todos: [{id, endpoint_id, queue, created}], created}. Errors: not_found, conflict (no active target), forbidden. Notifies todo_ready. Writes todos, events, webhook_audit.';

create or replace function switchboard.webhook_audit_of(p_webhook_id text, p_limit integer default 50, p_actor_human_id uuid default null)
returns table (at timestamptz, actor text, action text, endpoint_id uuid, event_id uuid, todo_id uuid, detail jsonb)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer := check_limit(p_limit, 50, 1000);
begin
    perform acting_owner(p_actor_human_id);
    return query
        select a.at, a.actor, a.action, a.endpoint_id, a.event_id, a.todo_id, a.detail
        from endpoints e cross join lateral (
            select * from webhook_audit l where l.endpoint_id = e.id and l.webhook_id = as_uuid(p_webhook_id) order by l.id desc limit v_limit) a
        where p_actor_human_id is null or e.human_id = p_actor_human_id
        order by a.id desc limit v_limit;
end $$;
comment on function switchboard.webhook_audit_of(text, integer, uuid) is
'What was done to a receiver, its routes and its deliveries, newest first; also after it was deleted. p_limit: 1..1000. Errors: invalid_argument, forbidden. Reads webhook_audit.';

create or replace function switchboard.prune_events(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_count bigint;
begin
    with old as materialized (
        select o.* from endpoints e cross join lateral keep_bounds(e) b cross join lateral (select new_id(b.keep_from) as id offset 0) upto cross join lateral (
            select v.endpoint_id, v.id from events v
            where v.endpoint_id = e.id and v.id < upto.id
              and not exists (select from todos t where t.endpoint_id = v.endpoint_id and t.id = v.todo_id and t.completed_at is null)
              and not exists (select from webhook_audit a join todos t on t.endpoint_id = a.endpoint_id and t.id = a.todo_id
                              where a.endpoint_id = v.endpoint_id and a.event_id = v.id and a.action = 'replayed' and t.completed_at is null)
            order by v.id limit p_limit for update skip locked) o
        limit p_limit
    ), gone as (
        delete from events v using old where v.endpoint_id = old.endpoint_id and v.id = old.id returning v.id
    )
    select count(*) into v_count from gone;
    return v_count + prune_audit(greatest(p_limit - v_count, 1));
end $$;
comment on function switchboard.prune_events(bigint) is 'Deletes about p_limit events beyond the retention of their endpoint that no live todo refers to, and entries of the audit. Returns how many. Writes events, webhook_audit.';

create or replace function switchboard.prune_audit(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_count bigint;
begin
    with old as materialized (
        select o.* from endpoints e cross join lateral keep_bounds(e) b cross join lateral (select new_id(b.keep_from) as id offset 0) upto cross join lateral (
            select a.endpoint_id, a.id from webhook_audit a
            where a.endpoint_id = e.id and a.id < upto.id
              and not exists (select from todos t where t.endpoint_id = a.endpoint_id and t.id = a.todo_id and t.completed_at is null)
            order by a.id limit p_limit for update skip locked) o
        limit p_limit
    ), gone as (
        delete from webhook_audit a using old where a.endpoint_id = old.endpoint_id and a.id = old.id returning a.id
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;
comment on function switchboard.prune_audit(bigint) is 'Deletes up to p_limit entries of webhook_audit beyond the retention of their endpoint that are about no live todo. Returns how many. Writes webhook_audit.';
