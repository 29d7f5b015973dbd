-- REST on receivers, deliveries and hooks: the branches of run_operation() for what comes in and what calls out.
--
-- The id of a receiver, of a delivery or of a hook is looked for among the endpoints of the human alone. The
-- secrets and addresses that a new one needs are minted and sealed by the shell (p_shell), as for the tools of
-- agents; an answer names what the shell fills in, this once: "$secret", "$token", "$ingest_url". The audit has
-- the human, as op:<name>. Lock order: the endpoint's row, then the receiver or the hook.

create or replace function switchboard.api_webhook(p_webhook switchboard.endpoint_webhooks) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(
        'id', p_webhook.id, 'endpoint_id', p_webhook.endpoint_id, 'endpoint', e.slug, 'source_type', p_webhook.source_type, 'target_queue', p_webhook.target_queue,
        'trust_mode', p_webhook.trust_mode, 'held', p_webhook.held, 'live', may_take(e, p_webhook.target_queue, clock()),
        'routes', (select count(*) from webhook_routes r where r.endpoint_id = p_webhook.endpoint_id and r.webhook_id = p_webhook.id),
        'previous_valid_until', case when p_webhook.previous_valid_until > clock() then p_webhook.previous_valid_until end, 'created_at', p_webhook.created_at)
    from endpoints e where e.id = p_webhook.endpoint_id
$$;
comment on function switchboard.api_webhook(switchboard.endpoint_webhooks) is
'A receiver as its human sees it, with neither token nor secret. live: its own endpoint takes deliveries; routes: how many others do; previous_valid_until: end of a rotation''s grace while it lasts, else null. Reads endpoints, webhook_routes.';

create or replace function switchboard.api_webhook_by_id(p_webhook_id text, p_human_id uuid) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    return jsonb_build_object('webhook', api_webhook(webhook_of(as_uuid(p_webhook_id), p_human_id)));
end $$;
comment on function switchboard.api_webhook_by_id(text, uuid) is '{webhook}: a receiver of the human as it is now, also after a change of the same call.';

create or replace function switchboard.api_webhooks(p_human_id uuid, p_operation text, p_args jsonb, p_shell jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_cursor   record  := read_cursor(p_args ->> 'cursor');
    v_endpoint uuid    := own_endpoint_asked(p_args, p_human_id);
    v_rows     jsonb[];
    v_cursors  text[];
    v_made     jsonb;
begin
    if p_operation = 'create_webhook' then
        v_made := add_webhook(own_endpoint(v_endpoint::text), acting_owner(p_human_id), p_args ->> 'source_type', p_args ->> 'target_queue',
            decode(p_shell ->> 'sealed_secret', 'hex'), decode(p_shell ->> 'token_digest', 'hex'), coalesce(p_shell ->> 'secret_form', 'made'));
        return api_webhook_by_id(v_made ->> 'webhook_id', p_human_id) || jsonb_build_object('ingest_url', v_made -> 'ingest_url', 'signing_secret', v_made -> 'signing_secret');
    end if;
    select array_agg(api_webhook(k.w) order by k.at desc, k.id desc), array_agg(cursor_of(k.at, k.id) order by k.at desc, k.id desc) into v_rows, v_cursors
    from (select w, w.created_at as at, w.id from endpoints e join endpoint_webhooks w on w.endpoint_id = e.id
          where e.human_id = p_human_id and (v_endpoint is null or e.id = v_endpoint) and (v_cursor.id is null or (w.created_at, w.id) < (v_cursor.at, v_cursor.id))
          order by w.created_at desc, w.id desc limit v_limit) k;
    return api_page('webhooks', v_rows, v_cursors, v_limit);
end $$;
comment on function switchboard.api_webhooks(uuid, text, jsonb, jsonb) is 'The part of run_operation() that lists the receivers of the human''s endpoints, newest first, and creates them. Reads endpoints, endpoint_webhooks.';

create or replace function switchboard.api_about_webhook(p_human_id uuid, p_endpoint_id text, p_operation text, p_args jsonb, p_shell jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id    text := p_args ->> 'id';
    v_actor text := acting_owner(p_human_id);
    v_made  jsonb;
begin
    case p_operation
        when 'get_webhook' then
            return api_webhook_by_id(v_id, p_human_id) || api_routes(p_endpoint_id, v_id) || jsonb_build_object('audit', coalesce(
                (select jsonb_agg(to_jsonb(a)) from webhook_audit_of(v_id, 50, p_human_id) a), '[]'));
        when 'list_webhook_routes' then return api_routes(p_endpoint_id, v_id);
        when 'add_webhook_route' then return add_route(own_endpoint(p_endpoint_id), v_actor, v_id, p_args ->> 'target_endpoint_id');
        when 'remove_webhook_route' then return drop_route(own_endpoint(p_endpoint_id, null, true), v_actor, v_id, p_args ->> 'target');
        when 'delete_webhook' then
            v_made := drop_webhook(own_endpoint(p_endpoint_id, null, true), v_actor, v_id);
            return jsonb_build_object('id', v_made -> 'webhook_id', 'deleted', v_made -> 'deleted');
        when 'hold_webhook' then v_made := hold_webhook(v_id, true, p_human_id);
        when 'unhold_webhook' then v_made := hold_webhook(v_id, false, p_human_id);
        when 'rotate_webhook' then
            v_made := turn_webhook(own_endpoint(p_endpoint_id), v_actor, v_id, decode(p_shell ->> 'sealed_secret', 'hex'), decode(p_shell ->> 'token_digest', 'hex'),
                                   coalesce(p_shell ->> 'secret_form', 'made'));
            return api_webhook_by_id(v_id, p_human_id) || jsonb_build_object('signing_secret', v_made -> 'signing_secret')
                || case when v_made ? 'ingest_url' then jsonb_build_object('ingest_url', v_made -> 'ingest_url') else '{}' end;
    end case;
    return api_webhook_by_id(v_id, p_human_id);
end $$;
comment on function switchboard.api_about_webhook(uuid, text, text, jsonb, jsonb) is 'The part of run_operation() that is about one receiver, of the endpoint p_endpoint_id, which is the human''s.';

create or replace function switchboard.api_routes(p_endpoint_id text, p_webhook_id text) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('routes', jsonb_agg(to_jsonb(r))) from list_webhook_routes(p_endpoint_id, p_webhook_id) r
$$;
comment on function switchboard.api_routes(text, text) is '{routes}: every target of a receiver, as list_webhook_routes.';

create or replace function switchboard.quarantined_events(p_human_id uuid, p_endpoint_id uuid, p_webhook_id uuid, p_limit integer, p_before uuid)
returns setof switchboard.events
language sql stable set search_path = switchboard, pg_temp
as $$
    select v.* from endpoints e join todos t on t.endpoint_id = e.id join events v on v.endpoint_id = t.endpoint_id and v.id = t.event_id
    where e.human_id = p_human_id and (p_endpoint_id is null or e.id = p_endpoint_id) and t.assignee is null and t.queue = 'quarantine' and t.state = 'pending'
      and (p_webhook_id is null or v.webhook_id = p_webhook_id) and (p_before is null or v.id < p_before)
    order by v.id desc fetch first (p_limit) rows with ties
$$;
comment on function switchboard.quarantined_events(uuid, uuid, uuid, integer, uuid) is
'Deliveries to the human''s endpoints that wait in quarantine, newest first, below the id p_before; the rows of the last one come all. Looks at all that waits there. Reads endpoints, todos, events.';

create or replace function switchboard.api_list_events(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_endpoint uuid    := own_endpoint_asked(p_args, p_human_id);
    v_webhook  text    := p_args ->> 'webhook';
    v_before   text    := p_args ->> 'cursor';
    v_rows     jsonb;
begin
    if v_before is not null and as_uuid(v_before) is null then
        perform refuse_cursor();
    elsif (p_args ->> 'quarantine')::boolean then
        select jsonb_agg(jsonb_build_object('id', v.id, 'endpoint_id', v.endpoint_id, 'endpoint', e.slug, 'webhook_id', v.webhook_id, 'source_type', v.source_type, 'event_type', v.event_type,
                   'delivery_id', v.delivery_id, 'trust_mode', v.trust_mode, 'verified', is_verified(v.trust_mode), 'queue', v.queue, 'bytes', octet_length(v.body),
                   'todo_id', t.id, 'todo_state', t.state, 'title', t.title, 'received_at', v.received_at) order by v.id desc, v.endpoint_id)
        into v_rows
        from quarantined_events(p_human_id, v_endpoint, case when v_webhook is not null then coalesce(as_uuid(v_webhook), '00000000-0000-0000-0000-000000000000') end, v_limit, as_uuid(v_before)) v
        join endpoints e on e.id = v.endpoint_id join todos t on t.endpoint_id = v.endpoint_id and t.id = v.todo_id;
    else
        select jsonb_agg(to_jsonb(v) || jsonb_build_object('endpoint', e.slug) order by v.id desc, v.endpoint_id) into v_rows
        from list_events_any_endpoint(v_webhook, v_limit, v_endpoint::text, v_before, p_human_id) v join endpoints e on e.id = v.endpoint_id;
    end if;
    return jsonb_build_object('events', coalesce(v_rows, '[]'), 'next_cursor', case when jsonb_array_length(v_rows) >= v_limit then v_rows -> -1 -> 'id' end);
end $$;
comment on function switchboard.api_list_events(uuid, jsonb) is 'A page of the deliveries to the human''s endpoints, newest first, or of those that wait in quarantine. Errors: invalid_argument, not_found (endpoint). Reads events, todos, endpoints.';

create or replace function switchboard.api_events(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id text := p_args ->> 'id';
begin
    case p_operation
        when 'list_events' then return api_list_events(p_human_id, p_args);
        when 'get_event' then return jsonb_build_object('event', get_event_any_endpoint(v_id, p_human_id));
        when 'read_event' then return read_event_any_endpoint(v_id, (p_args ->> 'offset')::integer, (p_args ->> 'limit')::integer, p_human_id);
        when 'replay_event' then
            return replay_event((one_event(v_id, p_human_id)).id::text, own_endpoint_asked(p_args, p_human_id)::text, p_human_id);
    end case;
    return null;
end $$;
comment on function switchboard.api_events(uuid, text, jsonb) is 'The part of run_operation() that is about deliveries.';

create or replace function switchboard.api_hook(p_hook switchboard.notify_hooks) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(
        'id', p_hook.id, 'endpoint_id', p_hook.endpoint_id, 'endpoint', e.slug, 'url', p_hook.url, 'queues', p_hook.queues,
        'health', hook_health(p_hook),
        'failures', p_hook.failures, 'disabled_at', p_hook.disabled_at, 'last_delivered_at', p_hook.last_delivered_at, 'last_failed_at', p_hook.last_failed_at,
        'last_status', p_hook.last_status, 'created_at', p_hook.created_at,
        'waiting', (select count(*) from notify_deliveries d where d.endpoint_id = p_hook.endpoint_id and d.hook_id = p_hook.id and d.due_at is not null))
    from endpoints e where e.id = p_hook.endpoint_id
$$;
comment on function switchboard.api_hook(switchboard.notify_hooks) is
'A hook as its human sees it, without secrets. queues: null: all; health: ok, failing (the last call failed), off (disabled after ten), unsigned (has no secret, sends nothing); waiting: calls that are due. Reads endpoints, notify_deliveries.';

create or replace function switchboard.api_hook_by_id(p_hook_id uuid, p_endpoint_id uuid) returns jsonb
language sql volatile set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('hook', api_hook(h)) from notify_hooks h where h.endpoint_id = p_endpoint_id and h.id = p_hook_id
$$;
comment on function switchboard.api_hook_by_id(uuid, uuid) is '{hook}: as it is now, also after a change of the same call. Reads notify_hooks.';

create or replace function switchboard.hook_endpoint(p_hook_id text, p_human_id uuid) returns uuid
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid;
begin
    select h.endpoint_id into v_id from endpoints e join notify_hooks h on h.endpoint_id = e.id where e.human_id = p_human_id and h.id = as_uuid(p_hook_id);
    if v_id is null then
        perform refuse('not_found', 'there is no such hook: list the hooks of your endpoints');
    end if;
    return v_id;
end $$;
comment on function switchboard.hook_endpoint(text, uuid) is 'The endpoint of a hook, among those of the human; foreign and unknown ids are not_found alike. One probe an endpoint. Reads endpoints, notify_hooks.';

create or replace function switchboard.api_list_hooks(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_cursor   record  := read_cursor(p_args ->> 'cursor');
    v_endpoint uuid    := own_endpoint_asked(p_args, p_human_id);
    v_rows     jsonb[];
    v_cursors  text[];
begin
    select array_agg(api_hook(k.h) order by k.at desc, k.id desc), array_agg(cursor_of(k.at, k.id) order by k.at desc, k.id desc) into v_rows, v_cursors
    from (select h, h.created_at as at, h.id from endpoints e join notify_hooks h on h.endpoint_id = e.id
          where e.human_id = p_human_id and (v_endpoint is null or e.id = v_endpoint) and (v_cursor.id is null or (h.created_at, h.id) < (v_cursor.at, v_cursor.id))
          order by h.created_at desc, h.id desc limit v_limit) k;
    return api_page('hooks', v_rows, v_cursors, v_limit);
end $$;
comment on function switchboard.api_list_hooks(uuid, jsonb) is 'A page of the hooks of the human''s endpoints, newest first. Errors: invalid_argument, not_found (endpoint). Reads endpoints, notify_hooks.';

create or replace function switchboard.api_hooks(p_human_id uuid, p_operation text, p_args jsonb, p_shell jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_secret   bytea := decode(p_shell ->> 'sealed_secret', 'hex');
    v_endpoint uuid;
    v_made     jsonb;
begin
    if p_operation = 'list_hooks' then
        return api_list_hooks(p_human_id, p_args);
    elsif p_operation = 'create_hook' then
        v_endpoint := own_endpoint_asked(p_args, p_human_id);
        if v_secret is null then
            perform refuse_argument('signing_secret', 'is missing: the shell makes it');
        end if;
        v_made := add_hook(own_endpoint(v_endpoint::text), p_args ->> 'url', texts_argument(p_args, 'queues'), v_secret);
        return api_hook_by_id((v_made ->> 'hook_id')::uuid, v_endpoint) || jsonb_build_object('signing_secret', v_made -> 'signing_secret');
    end if;
    v_endpoint := hook_endpoint(p_args ->> 'id', p_human_id);
    if p_operation = 'rotate_hook' then
        v_made := turn_hook(own_endpoint(v_endpoint::text), p_args ->> 'id', v_secret);
        return api_hook_by_id((v_made ->> 'hook_id')::uuid, v_endpoint)
            || jsonb_build_object('signing_secret', v_made -> 'signing_secret', 'previous_valid_until', v_made -> 'previous_valid_until');
    end if;
    v_made := drop_hook(own_endpoint(v_endpoint::text, null, true), p_args ->> 'id');
    return jsonb_build_object('id', v_made -> 'hook_id', 'deleted', v_made -> 'deleted');
end $$;
comment on function switchboard.api_hooks(uuid, text, jsonb, jsonb) is 'The part of run_operation() that is about hooks.';
