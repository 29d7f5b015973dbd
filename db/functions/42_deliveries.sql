-- Deliveries: what a webhook's request becomes.
--
-- The shell has verified a delivery before it calls receive_delivery(). One transaction then stores, for
-- every live target of the receiver, the event, byte for byte, and its todo, each deduplicated in its own
-- endpoint on '<webhook_id>:<delivery id>' among live todos (SPEC-0003, Per-Endpoint Idempotency). All
-- targets of one delivery share the event's id. Nothing is stored where nothing was created, and nothing
-- at all when no target is live: the sender is to try again.
-- What a todo cannot carry (too large, too deep, not JSON, not storable) stays in the event; the todo then
-- says where it is and why, and read_event gives it in pieces. Nothing verified is refused for its content.
-- While an operator holds a receiver, its todos go to the queue quarantine instead (events file).
-- Lock order: todos in order of endpoint, then the counters.

create or replace function switchboard.receiver(p_token_digest bytea, p_at timestamptz) returns switchboard.endpoint_webhooks
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoint_webhooks;
begin
    select * into v_row from endpoint_webhooks w where w.token_digest = p_token_digest;
    if not found then
        select * into v_row from endpoint_webhooks w where w.previous_token_digest = p_token_digest and w.previous_valid_until > p_at;
    end if;
    return v_row;
end $$;
comment on function switchboard.receiver(bytea, timestamptz) is 'The receiver at the URL with this token, or with the one that a rotation replaced less than 24 hours ago; NULLs: none. Reads endpoint_webhooks.';

create or replace function switchboard.webhook_for(p_token_digest bytea) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_now     timestamptz       := clock();
    v_webhook endpoint_webhooks := receiver(p_token_digest, v_now);
begin
    if v_webhook.id is null then
        return null;
    end if;
    return jsonb_build_object(
        'webhook_id', v_webhook.id, 'endpoint_id', v_webhook.endpoint_id, 'source_type', v_webhook.source_type,
        'sealed_secrets', case when signs(v_webhook.source_type) then to_jsonb(array_remove(array[encode(v_webhook.sealed_secret, 'hex'),
            case when v_webhook.previous_valid_until > v_now then encode(v_webhook.previous_secret, 'hex') end], null)) else '[]' end,
        'now', extract(epoch from v_now));
end $$;
comment on function switchboard.webhook_for(bytea) is
'What the shell needs to verify a delivery to the URL with this token: source type, sealed secrets (hex, the current one first, the previous one while a rotation''s grace lasts), and the time by this database; NULL: unknown. Reads endpoint_webhooks.';

create or replace function switchboard.count_delivery(p_provider text, p_trust_mode text, p_verdict text, p_reason text default '', p_n bigint default 1) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    insert into delivery_totals as t (shard, provider, trust_mode, verdict, reason, total)
    values (pg_backend_pid() % 64, p_provider, p_trust_mode, p_verdict, p_reason, p_n)
    on conflict (shard, provider, trust_mode, verdict, reason) do update set total = t.total + excluded.total;
end $$;
comment on function switchboard.count_delivery(text, text, text, text, bigint) is 'Adds to the counters of deliveries, in this session''s share of them. Writes delivery_totals.';

create or replace function switchboard.count_deliveries(p_counts jsonb) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_count record;
begin
    for v_count in
        select c.provider, c.trust_mode, c.verdict, c.reason, sum(c.n)::bigint as n
        from jsonb_to_recordset(p_counts) c (provider text, trust_mode text, verdict text, reason text, n bigint)
        where c.verdict in ('refused', 'limited') and c.n > 0
        group by 1, 2, 3, 4 order by 1, 2, 3, 4
    loop
        perform count_delivery(left(coalesce(v_count.provider, ''), 32), left(coalesce(v_count.trust_mode, ''), 32),
                               v_count.verdict, left(coalesce(v_count.reason, ''), 32), v_count.n);
    end loop;
end $$;
comment on function switchboard.count_deliveries(jsonb) is
'Counts what the shell turned away before the database was asked: an array of {provider, trust_mode, verdict: refused or limited, reason, n}. Writes delivery_totals.';

create or replace function switchboard.delivery_counts()
returns table (provider text, trust_mode text, verdict text, reason text, total bigint)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select t.provider, t.trust_mode, t.verdict, t.reason, sum(t.total)::bigint from delivery_totals t group by 1, 2, 3, 4 order by 1, 2, 3, 4
$$;
comment on function switchboard.delivery_counts() is
'Deliveries ever, by provider (source type; empty: no such receiver), trust and verdict: accepted, duplicate (all its todos were live already), silent (a ping), no_target, refused with its reason, limited. Reads delivery_totals.';

create or replace function switchboard.live_targets(p_webhook switchboard.endpoint_webhooks, p_at timestamptz) returns switchboard.endpoints[]
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return array(
        select e from endpoints e
        where e.id in (select p_webhook.endpoint_id
                       union all
                       select r.target_endpoint_id from webhook_routes r where r.endpoint_id = p_webhook.endpoint_id and r.webhook_id = p_webhook.id)
          and e.revoked_at is null and (e.expires_at is null or e.expires_at > p_at) and p_webhook.target_queue = any (e.queues)  -- may_take()
        order by e.id);
end $$;
comment on function switchboard.live_targets(switchboard.endpoint_webhooks, timestamptz) is
'The endpoints that a delivery goes to now: the receiver''s owner and its routes, as far as they may take it; in order of id, in which todos are made. Reads endpoints, webhook_routes.';

create or replace function switchboard.store_delivery(
    p_endpoint switchboard.endpoints, p_event switchboard.events, p_at timestamptz, p_held boolean, p_title text, p_payload jsonb)
returns switchboard.created_todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_todo created_todo;
begin
    if p_held then
        insert into queue_marks (endpoint_id, queue) values (p_endpoint.id, 'quarantine') on conflict do nothing;
    end if;
    v_todo := enqueue(p_endpoint.id, p_endpoint.queues, p_at, p_event.trust_mode, p_event.queue, p_title, p_payload, p_event.webhook_id || ':' || p_event.delivery_id,
                      p_event.event_type, p_event.source_type, null, null, p_event.id, p_held);
    if v_todo.created then
        p_event.endpoint_id := p_endpoint.id;
        p_event.todo_id := v_todo.id;
        insert into events values (p_event.*) on conflict do nothing;  -- a replay finds the event there
    end if;
    return v_todo;
end $$;
comment on function switchboard.store_delivery(switchboard.endpoints, switchboard.events, timestamptz, boolean, text, jsonb) is
'The event p_event and its todo, created at p_at, on one target, unless a live todo has the key; p_held: in quarantine. Writes todos, events.';

create or replace function switchboard.spread(
    p_event switchboard.events, p_at timestamptz, p_held boolean, p_targets switchboard.endpoints[], p_document jsonb, p_problem text)
returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_title   text  := delivery_title(p_event.source_type, p_event.event_type, p_event.delivery_id, p_document);
    v_payload jsonb := case when p_problem is null then p_document else jsonb_build_object(
        'event_id', p_event.id, 'bytes', octet_length(p_event.body), 'content_type', p_event.content_type, 'reason', 'the body ' || p_problem) end;
    v_target  endpoints;
    v_todo    created_todo;
    v_todos   jsonb := '[]';
    v_created integer := 0;
begin
    foreach v_target in array p_targets loop
        v_todo := store_delivery(v_target, p_event, p_at, p_held, v_title, v_payload);
        v_created := v_created + v_todo.created::integer;
        v_todos := v_todos || jsonb_build_object('id', v_todo.id, 'endpoint_id', v_todo.endpoint_id, 'queue', v_todo.queue, 'created', v_todo.created);
    end loop;
    return jsonb_build_object('todos', v_todos, 'created', v_created, 'verified', is_verified(p_event.trust_mode), 'trust_mode', p_event.trust_mode);
end $$;
comment on function switchboard.spread(switchboard.events, timestamptz, boolean, switchboard.endpoints[], jsonb, text) is
'Stores a delivery on each of its targets; p_problem: why the document cannot be a payload. Returns the answer to the sender.';

create or replace function switchboard.receive_delivery(
    p_token_digest bytea, p_delivery_id text, p_event_type text, p_headers jsonb, p_body bytea, p_content_type text,
    p_document text default null, p_verification jsonb default '{}')
returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now      timestamptz       := clock();
    v_webhook  endpoint_webhooks := receiver(p_token_digest, v_now);
    v_targets  endpoints[];
    v_parsed   record;
    v_event    events;
    v_answer   jsonb;
begin
    if v_webhook.id is null then
        return error_value('SB404', 'there is no such receiver: check the URL', null);
    end if;
    v_targets := live_targets(v_webhook, v_now);
    if v_targets = '{}' then
        perform count_delivery(v_webhook.source_type, v_webhook.trust_mode, 'no_target');
        return error_value('SB503', 'this receiver has no active endpoint: ask its owner', null);
    end if;
    v_parsed := parse_document(coalesce(p_document, body_text(p_body)));
    v_answer := delivery_reply(v_webhook, p_event_type, v_parsed.document);
    if v_answer is not null then
        perform count_delivery(v_webhook.source_type, v_webhook.trust_mode, 'silent');
        return v_answer;
    end if;
    v_event.delivery_id := delivery_key(v_webhook.source_type, p_delivery_id, v_parsed.document, p_body);
    v_event.event_type := delivery_type(v_webhook.source_type, p_event_type, v_parsed.document);
    v_event.id := new_id(v_now);                   v_event.received_at := v_now;                 v_event.webhook_id := v_webhook.id;
    v_event.source_type := v_webhook.source_type;  v_event.trust_mode := v_webhook.trust_mode;   v_event.queue := v_webhook.target_queue;
    v_event.headers := p_headers;                  v_event.body := p_body;                       v_event.content_type := left(p_content_type, 256);
    v_event.document := p_document;                v_event.verification := p_verification;
    v_answer := spread(v_event, v_now, v_webhook.held, v_targets, v_parsed.document, v_parsed.problem);
    perform count_delivery(v_webhook.source_type, v_webhook.trust_mode, case when v_answer -> 'created' = '0' then 'duplicate' else 'accepted' end);
    return v_answer;
end $$;
comment on function switchboard.receive_delivery(bytea, text, text, jsonb, bytea, text, text, jsonb) is
'Stores a delivery that the shell has verified: per live target an event and a todo, once per delivery id among live todos. p_delivery_id, p_event_type: from the headers, NULL: from the document; p_headers: redacted; p_body: as received; p_document: the text to read as JSON, NULL: the body; p_verification: how it was verified. Returns {todos, created, verified, trust_mode}, {challenge} (Slack''s url_verification), or {"error": …} (not_found, unavailable: no live target). Notifies todo_ready. Writes todos, events, delivery_totals.';

create or replace function switchboard.event_piece(p_event switchboard.events, p_offset integer, p_limit integer) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_offset integer := least(coalesce(p_offset, 0), 1073741824);  -- no body is larger
    v_bytes  bytea   := substring(p_event.body from v_offset + 1 for p_limit);
    v_text   text    := case when v_bytes = '' then '' end;
begin
    for v_cut in 0 .. least(3, octet_length(v_bytes) - 1) loop  -- do not end within a character
        v_text := try_utf8(substring(v_bytes for octet_length(v_bytes) - v_cut));
        if v_text <> '' then
            v_bytes := substring(v_bytes for octet_length(v_bytes) - v_cut);
            exit;
        end if;
        v_text := null;
    end loop;
    return jsonb_strip_nulls(jsonb_build_object(
        'id', p_event.id, 'content_type', p_event.content_type, 'event_type', p_event.event_type, 'trust_mode', p_event.trust_mode,
        'bytes', octet_length(p_event.body), 'offset', v_offset, 'text', v_text,
        'base64', case when v_text is null then replace(encode(v_bytes, 'base64'), E'\n', '') end,
        'next_offset', nullif(least(v_offset + octet_length(v_bytes), octet_length(p_event.body)), octet_length(p_event.body))));
end $$;
comment on function switchboard.event_piece(switchboard.events, integer, integer) is 'p_limit bytes of an event''s body from p_offset, as read_event answers them.';

create or replace function switchboard.check_offset(p_offset integer) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_offset < 0 then
        perform refuse_argument('offset', 'must be at least 0');
    end if;
end $$;
comment on function switchboard.check_offset(integer) is 'Refuses an offset below 0; NULL is 0.';

create or replace function switchboard.read_event(p_endpoint_id text, p_id text, p_offset integer default 0, p_limit integer default 16384) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_event events;
    v_limit integer := check_limit(p_limit, 16384, 32768);
begin
    perform check_offset(p_offset);
    select * into v_event from events e
    where e.endpoint_id = scope(p_endpoint_id, 'read_event') and e.id = as_uuid(p_id)
      and (not exists (select from todos t where t.endpoint_id = e.endpoint_id and t.id = e.todo_id and t.queue = 'quarantine')
           or exists (select from webhook_audit a join todos t on t.endpoint_id = a.endpoint_id and t.id = a.todo_id  -- discarded, then replayed
                      where a.endpoint_id = e.endpoint_id and a.event_id = e.id and a.action = 'replayed' and t.event_id = e.id and t.queue <> 'quarantine'));
    if not found then
        perform refuse('not_found', 'there is no such event here: a todo names its event in event_id');
    end if;
    return event_piece(v_event, p_offset, v_limit);
end $$;
comment on function switchboard.read_event(text, text, integer, integer) is
'A piece of a delivery''s body: p_limit bytes (1..32768) from p_offset, as text, or as base64 where it is not UTF-8; next_offset while there is more. One that an operator holds in quarantine is not there. Errors: not_found, invalid_argument. Reads events, todos.';

create or replace function switchboard.body_text(p_body bytea) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return try_utf8(case when substring(p_body for 3) = '\xefbbbf' then substring(p_body from 4) else p_body end);
end $$;
comment on function switchboard.body_text(bytea) is 'A body as text without a byte order mark; NULL when it is not UTF-8 or holds a NUL.';

create or replace function switchboard.try_utf8(p_bytes bytea) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    return convert_from(p_bytes, 'UTF8');
exception when others then
    return null;
end $$;
comment on function switchboard.try_utf8(bytea) is 'The bytes as text; NULL when they are not UTF-8 or hold a NUL.';
