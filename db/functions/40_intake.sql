-- Intake: webhook receivers, and the todos that their deliveries become.
--
-- The shell has verified a delivery before it calls receive_delivery(): it knows the secrets, which are
-- sealed here. The trust of a delivery follows from the receiver's source type and is never supplied.
-- One transaction stores the event, byte for byte, and its todo, deduplicated on
-- '<webhook_id>:<delivery id>' among live todos. What a todo cannot carry (too large, too deep, not JSON,
-- not storable) stays in the event; the todo then says where it is and why, and read_event gives it in
-- pieces. Nothing verified is refused for its content.
-- Lock order: the endpoint's row (for the ceiling of receivers), then the receiver, then todos.

create or replace function switchboard.source_types()
returns table (source_type text, trust_mode text)
language sql immutable set search_path = switchboard, pg_temp
as $$
    values ('github', 'signed')
$$;
comment on function switchboard.source_types() is 'The senders that receivers can be made for, and the trust that their deliveries have.';

create or replace function switchboard.add_webhook(
    p_endpoint switchboard.endpoints, p_source_type text, p_target_queue text, p_sealed_secret bytea, p_token_digest bytea)
returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_type record;
    v_id   uuid;
begin
    select * into v_type from source_types() s where s.source_type = p_source_type;
    if not found then
        perform refuse_argument('source_type', 'must be one of ' || (select string_agg(s.source_type, ', ') from source_types() s));
    elsif not p_source_type = any (p_endpoint.webhook_source_types) then
        perform refuse('forbidden', 'the grant of this endpoint does not cover that source type: ask its owner', '{"field": "source_type"}');
    end if;
    perform check_queue(p_target_queue, p_endpoint.queues);
    if octet_length(p_sealed_secret) is null or octet_length(p_token_digest) is distinct from 32 then
        perform refuse_argument('signing_secret', 'is missing');
    elsif (select count(*) from endpoint_webhooks w where w.endpoint_id = p_endpoint.id) >= p_endpoint.webhook_max then
        perform refuse('ceiling_exceeded', null, jsonb_build_object('ceiling', p_endpoint.webhook_max));
    end if;
    insert into endpoint_webhooks (endpoint_id, source_type, target_queue, trust_mode, token_digest, sealed_secrets, created_at)
    values (p_endpoint.id, p_source_type, p_target_queue, v_type.trust_mode, p_token_digest, array[p_sealed_secret], clock())
    returning id into v_id;
    return jsonb_build_object('webhook_id', v_id, 'source_type', p_source_type, 'target_queue', p_target_queue, 'trust_mode', v_type.trust_mode);
end $$;
comment on function switchboard.add_webhook(switchboard.endpoints, text, text, bytea, bytea) is
'create_webhook for an endpoint whose row is locked, so that the ceiling holds under a race. Writes endpoint_webhooks.';

create or replace function switchboard.create_webhook(
    p_endpoint_id text, p_source_type text, p_target_queue text, p_sealed_secret bytea, p_token_digest bytea)
returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return add_webhook(own_endpoint(p_endpoint_id), p_source_type, p_target_queue, p_sealed_secret, p_token_digest);
end $$;
comment on function switchboard.create_webhook(text, text, text, bytea, bytea) is
'A receiver for the endpoint. p_source_type: one of source_types() within the grant; p_target_queue: a granted queue; p_sealed_secret: the signing secret as the shell sealed it; p_token_digest: SHA-256 of the token in its URL. Returns webhook_id, source_type, target_queue, trust_mode. Errors: not_found, conflict, invalid_argument, forbidden, ceiling_exceeded. Writes endpoint_webhooks.';

create or replace function switchboard.list_webhooks(p_endpoint_id text)
returns table (webhook_id uuid, source_type text, target_queue text, trust_mode text, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select w.id, w.source_type, w.target_queue, w.trust_mode, w.created_at
    from endpoint_webhooks w where w.endpoint_id = scope(p_endpoint_id, 'list_webhooks') order by w.created_at, w.id
$$;
comment on function switchboard.list_webhooks(text) is 'The receivers of the endpoint, oldest first; neither tokens nor secrets. Reads endpoint_webhooks.';

create or replace function switchboard.webhook_for(p_token_digest bytea) returns jsonb
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('webhook_id', w.id, 'endpoint_id', w.endpoint_id, 'source_type', w.source_type,
        'sealed_secrets', (select jsonb_agg(encode(s, 'hex')) from unnest(w.sealed_secrets) s))
    from endpoint_webhooks w where w.token_digest = p_token_digest
$$;
comment on function switchboard.webhook_for(bytea) is 'What the shell needs to verify a delivery to the receiver with this token: its source type and sealed secrets (hex); NULL: unknown. Reads endpoint_webhooks.';

create or replace function switchboard.parse_document(p_document text, out document jsonb, out problem text)
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_document is null then
        problem := 'is not JSON text';
        return;
    end if;
    document := p_document::jsonb;
    problem := json_problem(document);
exception when others then  -- not JSON, not storable (\u0000, a lone surrogate), deeper than the server's stack
    problem := 'is not JSON that can be stored';
end $$;
comment on function switchboard.parse_document(text) is 'p_document as jsonb, or why it cannot be a payload.';

create or replace function switchboard.delivery_title(p_source_type text, p_event_type text, p_document jsonb) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_item  jsonb := coalesce(p_document -> 'pull_request', p_document -> 'issue', p_document -> 'discussion', p_document -> 'release', p_document -> 'workflow_run');
    v_parts text[] := array[
        p_document #>> '{repository,full_name}',
        coalesce(replace(p_event_type, '_', ' '), p_source_type),
        '#' || coalesce(v_item ->> 'number', v_item ->> 'run_number'),
        p_document ->> 'action',
        regexp_replace(p_document ->> 'ref', '^refs/(heads|tags)/', '')];
    v_about text := coalesce(v_item ->> 'title', v_item ->> 'display_title', v_item ->> 'name', p_document #>> '{head_commit,message}');
begin
    return one_line(array_to_string(v_parts, ' ') || coalesce(': ' || v_about, ''), 500);
exception when others then  -- a document of another shape: the event's name will do
    return one_line(coalesce(p_event_type, p_source_type), 500);
end $$;
comment on function switchboard.delivery_title(text, text, jsonb) is
'What a person should see of a delivery at a glance: repository, event, number, action, then the title; one line of at most 500 characters.';

create or replace function switchboard.receive_delivery(
    p_token_digest bytea, p_delivery_id text, p_event_type text, p_headers jsonb, p_body bytea, p_content_type text, p_document text default null)
returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz := clock();
    v_webhook  endpoint_webhooks;
    v_endpoint endpoints;
    v_parsed   record;
    v_new      todos;
    v_todo     created_todo;
    v_event_id uuid := new_id(v_now);
    v_delivery text := case when p_delivery_id is null then encode(sha256(p_body), 'hex')
                            when octet_length(p_delivery_id) > 256 then encode(sha256(convert_to(p_delivery_id, 'UTF8')), 'hex')
                            else p_delivery_id end;
begin
    select * into v_webhook from endpoint_webhooks w where w.token_digest = p_token_digest;
    if not found then
        return error_value('SB404', 'there is no such receiver: check the URL', null);
    end if;
    select * into v_endpoint from endpoints e where e.id = v_webhook.endpoint_id;
    if not is_active(v_endpoint.revoked_at, v_endpoint.expires_at, v_now) then
        return error_value('SB503', 'this receiver has no active endpoint: ask its owner', null);
    end if;
    v_parsed := parse_document(p_document);
    v_new := new_todo(
        v_endpoint, v_now, v_webhook.trust_mode, v_webhook.target_queue,
        coalesce(nullif(delivery_title(v_webhook.source_type, p_event_type, v_parsed.document), ''), v_webhook.source_type),
        case when v_parsed.problem is null then v_parsed.document else jsonb_build_object(
            'event_id', v_event_id, 'bytes', octet_length(p_body), 'content_type', p_content_type, 'reason', 'the body ' || v_parsed.problem) end,
        v_webhook.id || ':' || v_delivery, nullif(left(p_event_type, 128), ''), v_webhook.source_type, null, null);
    v_new.event_id := v_event_id;
    v_todo := enqueue(v_new);
    if v_todo.created then
        insert into events (endpoint_id, id, todo_id, webhook_id, delivery_id, event_type, content_type, trust_mode, headers, body, received_at)
        values (v_endpoint.id, v_event_id, v_todo.id, v_webhook.id, v_delivery, left(p_event_type, 128), left(p_content_type, 256), v_webhook.trust_mode,
                p_headers, p_body, v_now);
    end if;
    return jsonb_build_object(
        'todos', jsonb_build_array(jsonb_build_object('id', v_todo.id, 'endpoint_id', v_todo.endpoint_id, 'queue', v_todo.queue, 'created', v_todo.created)),
        'created', v_todo.created::integer, 'verified', is_verified(v_webhook.trust_mode), 'trust_mode', v_webhook.trust_mode);
end $$;
comment on function switchboard.receive_delivery(bytea, text, text, jsonb, bytea, text, text) is
'Stores a delivery that the shell has verified: an event and a todo, once per delivery id among live todos. p_delivery_id: the sender''s, NULL: the SHA-256 of the body; p_headers: redacted; p_body: as received; p_document: the text to read as JSON, NULL: none. Returns {todos, created, verified, trust_mode} or {"error": …} (not_found, unavailable). Notifies todo_ready. Writes todos, events.';

create or replace function switchboard.read_event(p_endpoint_id text, p_id text, p_offset integer default 0, p_limit integer default 16384) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_event  events;
    v_offset integer := coalesce(p_offset, 0);
    v_limit  integer := check_limit(p_limit, 16384, 32768);
    v_bytes  bytea;
    v_text   text;
begin
    if v_offset < 0 then
        perform refuse_argument('offset', 'must be at least 0');
    end if;
    select * into v_event from events e where e.endpoint_id = scope(p_endpoint_id, 'read_event') and e.id = as_uuid(p_id);
    if not found then
        perform refuse('not_found', 'there is no such event here: a todo names its event in event_id');
    end if;
    v_bytes := substring(v_event.body from v_offset + 1 for v_limit);
    v_text := case when v_bytes = '' then '' end;
    for v_cut in 0 .. least(3, octet_length(v_bytes) - 1) loop  -- do not end within a character
        v_text := try_utf8(substring(v_bytes for octet_length(v_bytes) - v_cut));
        if v_text <> '' then
            v_bytes := substring(v_bytes for octet_length(v_bytes) - v_cut);
            exit;
        end if;
        v_text := null;
    end loop;
    return jsonb_strip_nulls(jsonb_build_object(
        'id', v_event.id, 'content_type', v_event.content_type, 'event_type', v_event.event_type, 'trust_mode', v_event.trust_mode,
        'bytes', octet_length(v_event.body), 'offset', v_offset, 'text', v_text,
        'base64', case when v_text is null then replace(encode(v_bytes, 'base64'), E'\n', '') end,
        'next_offset', nullif(least(v_offset + octet_length(v_bytes), octet_length(v_event.body)), octet_length(v_event.body))));
end $$;
comment on function switchboard.read_event(text, text, integer, integer) is
'A piece of a delivery''s body: p_limit bytes (1..32768) from p_offset, as text, or as base64 where it is not UTF-8; next_offset while there is more. Errors: not_found, invalid_argument. Reads events.';

create or replace function switchboard.try_utf8(p_bytes bytea) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return convert_from(p_bytes, 'UTF8');
exception when others then
    return null;
end $$;
comment on function switchboard.try_utf8(bytea) is 'The bytes as text; NULL when they are not UTF-8 or hold a NUL.';

create or replace function switchboard.prune_events(p_limit bigint) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_count bigint;
begin
    with old as materialized (
        select o.* from endpoints e cross join lateral keep_bounds(e) b cross join lateral (
            select v.endpoint_id, v.id from events v
            where v.endpoint_id = e.id and v.id < new_id(b.keep_from)
              and not exists (select from todos t where t.endpoint_id = v.endpoint_id and t.id = v.todo_id and t.completed_at is null)
            order by v.id limit p_limit for update skip locked) o
        limit p_limit
    ), gone as (
        delete from events v using old where v.endpoint_id = old.endpoint_id and v.id = old.id returning v.id
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;
comment on function switchboard.prune_events(bigint) is 'Deletes up to p_limit events beyond the retention of their endpoint that no live todo refers to. Returns how many. Writes events.';
