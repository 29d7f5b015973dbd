-- The REST interface: what a human does over HTTP, and what the forms of the board do.
--
-- api_operations() is the register: method, path, arguments and where each comes from (path, query, a field of
-- the body, or the body as a whole), the shape of the answer, and what the shell has to add (a secret, an
-- address of ours, a vetted address). The shell makes its routes and the OpenAPI document from it and has no code
-- per operation: a new one is a row here and a branch in run_operation() (functions/api_todos, api_places,
-- api_intake). call_api() does a whole call in one
-- round trip, as call_tool() does for agents: authenticate the human, check the arguments against the register,
-- dispatch in one subtransaction, answer as a value. Whatever is reached gets the human whom the token, or the
-- session of the board, names, so that foreign and unknown are one: the same not_found, word for word.
-- Lists go on from a cursor, which is taken from the last row: a page stays where it was, whatever comes or goes.

do $$  -- here and not in a migration: the register gets its columns in the transaction that replays it, and no call finds it gone
begin
    if pg_get_function_result(to_regprocedure('switchboard.api_operations()')) !~ 'shell' then
        drop function switchboard.api_operations();
    end if;
    drop function if exists switchboard.api_dispatch(uuid, text, jsonb);
end $$;

create or replace function switchboard.policy_schema() returns jsonb
language sql immutable set search_path = switchboard, pg_temp
as $$
    select '{"type": "object", "additionalProperties": false, "properties": {
        "max_in_flight": {"type": ["integer", "null"], "minimum": 0, "maximum": 10000},
        "max_claims_per_window": {"type": ["integer", "null"], "minimum": 0, "maximum": 1000000},
        "window": {"type": ["object", "null"], "additionalProperties": false, "required": ["period", "tz"], "properties": {
            "period": {"enum": ["hour", "day", "week"]}, "tz": {"type": "string", "description": "an IANA zone"},
            "start": {"type": ["string", "null"], "description": "HH:MM, 00:00 if left out"}, "weekday": {"enum": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", null]}}}}}'::jsonb
$$;
comment on function switchboard.policy_schema() is 'The JSON Schema of a policy, for the OpenAPI document; what a policy may be is decided by set_admission_policy.';

create or replace function switchboard.api_operations()
returns table (name text, method text, path text, description text, input jsonb, required text[], answer jsonb, body_limit integer, shell jsonb)
language sql immutable security definer set search_path = switchboard, pg_temp
as $$
    with fields (id, scope, queue, place, result, lease, force, page, narrow, names, grants) as (
        values ('{"id": {"in": "path", "type": "string"}}'::jsonb,
                '{"scope": {"in": "path", "type": "string", "description": "endpoint: and the slug or id of an endpoint of yours"}}'::jsonb,
                '{"queue": {"in": "path", "type": "string"}}'::jsonb,
                '{"endpoint": {"in": "path", "type": "string", "description": "slug or id"}}'::jsonb,
                '{"result": {"in": "body", "description": "any JSON but null"}}'::jsonb,
                '{"lease_ttl_seconds": {"in": "body", "type": "integer", "minimum": 1}}'::jsonb,
                '{"force": {"in": "body", "type": "boolean", "description": "although somebody else holds it"}}'::jsonb,
                '{"limit": {"in": "query", "type": "integer", "minimum": 1, "description": "rows a page: 50 if left out, never more than 200"},
                  "cursor": {"in": "query", "type": "string", "description": "next_cursor of the page before"}}'::jsonb,
                '{"endpoint": {"in": "query", "type": "string", "description": "of this one only: slug or id"}}'::jsonb,
                '{"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"}, "minItems": 1, "maxItems": 32}'::jsonb,
                '{"webhook_max": {"in": "body", "type": "integer", "minimum": 0, "maximum": 1000, "description": "how many receivers it may have"},
                  "verbs": {"in": "body", "type": "array", "items": {"type": "string"}, "description": "what its agent may do, all of it"},
                  "webhook_source_types": {"in": "body", "type": "array", "items": {"type": "string"}, "description": "of which types"}}'::jsonb)
    )
    select t.* from fields f, lateral (values
        ('whoami', 'GET', '/api/v1/me', 'Who you are here.', '{}'::jsonb, '{}'::text[], '{"human": "Human"}'::jsonb, 0, '{}'::jsonb),

        ('list_todos', 'GET', '/api/v1/todos', 'Todos of your endpoints, newest first, pending ones oldest first, without payloads. Go on from next_cursor. With q newest first always.',
         f.page || f.narrow || '{"queue": {"in": "query", "type": "string"}, "state": {"in": "query", "enum": ["pending", "claimed", "done", "failed"]},
           "q": {"in": "query", "type": "string", "description": "look for it: an id, an idempotency key, or the beginning of a title"}}',
         '{}', '{"todos": ["Todo"], "next_cursor": "text|null"}', 0, '{}'),
        ('create_todo', 'POST', '/api/v1/todos', 'Create a todo, or find the live one with the same idempotency key (created: false).',
         '{"endpoint": {"in": "body", "type": "string", "description": "slug or id"}, "queue": {"in": "body", "type": "string"}, "title": {"in": "body", "type": "string"},
           "payload": {"in": "body", "description": "any JSON"}, "kind": {"in": "body", "type": "string"}, "source": {"in": "body", "type": "string"},
           "assignee": {"in": "body", "type": "string"}, "idempotency_key": {"in": "body", "type": "string", "description": "unique among the live todos of the endpoint: call again with the same one as often as you like"},
           "max_attempts": {"in": "body", "type": "integer", "minimum": 1, "maximum": 100}}',
         '{endpoint,queue,title}', '{"todo": "Todo", "created": "boolean"}', 65536, '{}'),
        ('get_todo', 'GET', '/api/v1/todos/{id}', 'One todo, whole, with the attempts that ended: the last 100 of them.', f.id, '{id}',
         '{"todo": "Todo", "attempts": ["Attempt"], "more_attempts": "boolean"}', 0, '{}'),
        ('claim', 'POST', '/api/v1/todos/{id}/claim', 'Take a todo yourself, under a lease.', f.id || f.lease, '{id}', '{"todo": "Todo", "admission?": "Headroom"}', 65536, '{}'),
        ('complete', 'POST', '/api/v1/todos/{id}/complete', 'Say that a todo is done.', f.id || f.result || f.force, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('fail', 'POST', '/api/v1/todos/{id}/fail', 'Say that it failed: retried after a backoff, or a dead letter after the last attempt.', f.id || f.result || f.force, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('extend', 'POST', '/api/v1/todos/{id}/extend', 'Extend a lease.', f.id || f.lease || f.force, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('release', 'POST', '/api/v1/todos/{id}/release', 'Give a todo back undone; the attempt is spent.', f.id || f.force, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('retry', 'POST', '/api/v1/todos/{id}/retry', 'Put a failed todo back to pending with fresh attempts.', f.id, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('release_quarantined', 'POST', '/api/v1/todos/{id}/release-quarantined', 'Put a todo that is held in quarantine on the queue its delivery was meant for.', f.id, '{id}', '{"todo": "Todo"}', 65536, '{}'),
        ('discard_quarantined', 'POST', '/api/v1/todos/{id}/discard-quarantined', 'End a todo that is held in quarantine; only a replay of its event brings it back.', f.id, '{id}', '{"todo": "Todo"}', 65536, '{}'),

        ('list_queues', 'GET', '/api/v1/queues', 'The queues of your endpoints with what is in them. A page covers whole endpoints: limit counts these.', f.page || f.narrow, '{}',
         '{"queues": ["Queue"], "next_cursor": "text|null"}', 0, '{}'),
        ('list_endpoints', 'GET', '/api/v1/endpoints', 'Your endpoints, by slug, revoked and expired ones too.', f.page, '{}', '{"endpoints": ["Endpoint"], "next_cursor": "text|null"}', 0, '{}'),
        ('vend_endpoint', 'POST', '/api/v1/endpoints', 'Vend an endpoint to an agent. Its credential is shown this once.',
         f.grants || jsonb_build_object('queues', f.names || '{"in": "body", "description": "1 to 32"}') || '{"slug": {"in": "body", "type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "description": "its name in addresses, unique for ever"},
           "expires_at": {"in": "body", "type": "string", "format": "date-time"}, "expires_in_days": {"in": "body", "type": "integer", "minimum": 1, "maximum": 36500, "description": "instead of expires_at"}}',
         '{slug,queues}', '{"endpoint": "Endpoint", "credential": "text", "mcp_url": "text"}', 65536, '{"public_url": true}'),
        ('get_endpoint', 'GET', '/api/v1/endpoints/{endpoint}', 'One endpoint, with its credentials (not their text).', f.place, '{endpoint}', '{"endpoint": "Endpoint", "credentials": ["Credential"]}', 0, '{}'),
        ('set_grant', 'PUT', '/api/v1/endpoints/{endpoint}/grant', 'Change what an endpoint may do. What is left out stays as it is; a list replaces the one there is.',
         f.place || f.grants || jsonb_build_object('queues', f.names || '{"in": "body", "description": "1 to 32"}'), '{endpoint}', '{"endpoint": "Endpoint"}', 65536, '{}'),
        ('set_default_lease', 'PUT', '/api/v1/endpoints/{endpoint}/default-lease', 'Set the lease of claims that name none; left out: that of the installation.',
         f.place || '{"lease_ttl_seconds": {"in": "body", "type": "integer", "minimum": 60, "maximum": 86400}}', '{endpoint}', '{"endpoint": "Endpoint"}', 65536, '{}'),
        ('set_retention', 'PUT', '/api/v1/endpoints/{endpoint}/retention', 'Set how long ended todos are kept, the narrower of both; left out: as the installation does.',
         f.place || '{"days": {"in": "body", "type": "integer", "minimum": 1, "maximum": 36500}, "rows": {"in": "body", "type": "integer", "minimum": 0}}', '{endpoint}', '{"endpoint": "Endpoint"}', 65536, '{}'),
        ('rotate_credential', 'POST', '/api/v1/endpoints/{endpoint}/rotate', 'Give an endpoint a new credential, shown this once; the old ones end now, or after a grace.',
         f.place || '{"grace_seconds": {"in": "body", "type": "integer", "minimum": 0, "maximum": 604800}}', '{endpoint}', '{"endpoint": "Endpoint", "credential": "text", "mcp_url": "text"}', 65536, '{"public_url": true}'),
        ('revoke_endpoint', 'POST', '/api/v1/endpoints/{endpoint}/revoke', 'Revoke an endpoint for good: its credentials end, and its live todos become dead letters.', f.place, '{endpoint}',
         '{"endpoint": "Endpoint", "dead_lettered": "integer"}', 65536, '{}'),

        ('list_webhooks', 'GET', '/api/v1/webhooks', 'The receivers of your endpoints, newest first.', f.page || f.narrow, '{}', '{"webhooks": ["Webhook"], "next_cursor": "text|null"}', 0, '{}'),
        ('create_webhook', 'POST', '/api/v1/webhooks', 'Create a receiver. Its URL and its secret are shown this once.',
         '{"endpoint": {"in": "body", "type": "string", "description": "slug or id"}, "target_queue": {"in": "body", "type": "string"},
           "signing_secret": {"in": "body", "type": "string", "minLength": 1, "maxLength": 1024, "description": "the sender''s, where it gives one"}}'
             || jsonb_build_object('source_type', jsonb_build_object('in', 'body', 'enum', (select jsonb_agg(s.source_type) from source_types() s))),
         '{endpoint,source_type,target_queue}', '{"webhook": "Webhook", "ingest_url": "text", "signing_secret": "text|null"}', 65536, '{"secret": "signing_secret"}'),
        ('get_webhook', 'GET', '/api/v1/webhooks/{id}', 'One receiver, with where its deliveries go and the last 50 entries of its audit.', f.id, '{id}',
         '{"webhook": "Webhook", "routes": ["Route"], "audit": ["WebhookChange"]}', 0, '{}'),
        ('rotate_webhook', 'POST', '/api/v1/webhooks/{id}/rotate', 'Give a receiver a new secret, or a new URL where it has none; the old one is accepted for 24 hours more.',
         f.id || '{"signing_secret": {"in": "body", "type": "string", "minLength": 1, "maxLength": 1024, "description": "the sender''s, where it gives one"}}', '{id}',
         '{"webhook": "Webhook", "ingest_url?": "text", "signing_secret": "text|null"}', 65536, '{"secret": "signing_secret"}'),
        ('delete_webhook', 'DELETE', '/api/v1/webhooks/{id}', 'End a receiver and its routes; its todos and deliveries stay.', f.id, '{id}', '{"id": "uuid", "deleted": "boolean"}', 0, '{}'),
        ('hold_webhook', 'POST', '/api/v1/webhooks/{id}/hold', 'Hold what a receiver takes from now on in quarantine.', f.id, '{id}', '{"webhook": "Webhook"}', 65536, '{}'),
        ('unhold_webhook', 'POST', '/api/v1/webhooks/{id}/unhold', 'Hold its deliveries no longer; what is in quarantine stays there until it is released or discarded.', f.id, '{id}', '{"webhook": "Webhook"}', 65536, '{}'),
        ('list_webhook_routes', 'GET', '/api/v1/webhooks/{id}/routes', 'Where a receiver''s deliveries go: its endpoint first, at most 32 in all.', f.id, '{id}', '{"routes": ["Route"]}', 0, '{}'),
        ('add_webhook_route', 'POST', '/api/v1/webhooks/{id}/routes', 'Send a receiver''s deliveries to another endpoint of yours, too, as todos of its own.',
         f.id || '{"target_endpoint_id": {"in": "body", "type": "string", "description": "id or slug"}}', '{id,target_endpoint_id}', '{"webhook_id": "uuid", "target_endpoint_id": "uuid", "created": "boolean"}', 65536, '{}'),
        ('remove_webhook_route', 'DELETE', '/api/v1/webhooks/{id}/routes/{target}', 'End a route.', f.id || '{"target": {"in": "path", "type": "string", "description": "id or slug of an endpoint"}}', '{id,target}',
         '{"webhook_id": "uuid", "target_endpoint_id": "text", "removed": "boolean"}', 0, '{}'),

        ('list_events', 'GET', '/api/v1/events', 'Deliveries that were taken, newest first, one row a target; the rows of the last delivery come all.',
         f.page || f.narrow || '{"webhook": {"in": "query", "type": "string", "description": "the id of a receiver, also of one that is gone"},
           "quarantine": {"in": "query", "type": "boolean", "description": "only what waits in quarantine"}}', '{}', '{"events": ["EventRow"], "next_cursor": "text|null"}', 0, '{}'),
        ('get_event', 'GET', '/api/v1/events/{id}', 'One delivery: headers, how it was verified, its todos and its replays.', f.id, '{id}', '{"event": "Event"}', 0, '{}'),
        ('read_event', 'GET', '/api/v1/events/{id}/body', 'The body of a delivery as it came, in pieces: go on from next_offset. text where it is UTF-8, else base64.',
         f.id || '{"offset": {"in": "query", "type": "integer", "minimum": 0}, "limit": {"in": "query", "type": "integer", "minimum": 1, "description": "bytes: 16384 if left out, never more than 32768"}}', '{id}',
         '{"id": "uuid", "content_type?": "text", "event_type?": "text", "trust_mode": "text", "bytes": "integer", "offset": "integer", "text?": "text", "base64?": "text", "next_offset?": "integer"}', 0, '{}'),
        ('replay_event', 'POST', '/api/v1/events/{id}/replay', 'Deliver an event again, to all targets its receiver has now, or to one.',
         f.id || '{"endpoint": {"in": "body", "type": "string", "description": "to this one only: slug or id"}}', '{id}', '{"todos": ["Replayed"], "created": "integer"}', 65536, '{}'),

        ('list_hooks', 'GET', '/api/v1/hooks', 'The notify hooks of your endpoints and how they fare, newest first.', f.page || f.narrow, '{}', '{"hooks": ["Hook"], "next_cursor": "text|null"}', 0, '{}'),
        ('create_hook', 'POST', '/api/v1/hooks', 'Have a URL called, signed, when a todo becomes ready. Its secret is shown this once.',
         jsonb_build_object('queues', f.names || '{"in": "body", "description": "1 to 32 granted ones; left out: all"}') || '{"endpoint": {"in": "body", "type": "string", "description": "slug or id"}, "url": {"in": "body", "type": "string"}}',
         '{endpoint,url}', '{"hook": "Hook", "signing_secret": "text"}', 65536, '{"secret": true, "outbound_url": "url"}'),
        ('rotate_hook', 'POST', '/api/v1/hooks/{id}/rotate', 'Give a hook a new secret, and enable it again; calls are signed with the old one, too, for 24 hours.', f.id, '{id}',
         '{"hook": "Hook", "signing_secret": "text", "previous_valid_until": "time"}', 65536, '{"secret": true}'),
        ('delete_hook', 'DELETE', '/api/v1/hooks/{id}', 'End a hook.', f.id, '{id}', '{"id": "uuid", "deleted": "boolean"}', 0, '{}'),

        ('list_admission', 'GET', '/api/v1/admission', 'The budgets of your endpoints'' queues, with what is used and whether claims go on.', f.page || f.narrow, '{}',
         '{"policies": ["Budget"], "next_cursor": "text|null"}', 0, '{}'),
        ('get_admission', 'GET', '/api/v1/admission/{scope}/{queue}', 'One budget (policy: null when the queue has none), its status, its last 30 windows and its latest changes.',
         f.scope || f.queue, '{scope,queue}', '{"...": "Budget", "windows": ["Window"], "audit": ["BudgetChange"]}', 0, '{}'),
        ('set_admission', 'PUT', '/api/v1/admission/{scope}/{queue}', 'Set the budget of a queue, all of it: what is left out is not bounded any more.',
         f.scope || f.queue || jsonb_build_object('policy', jsonb_build_object('in', 'whole body', 'type', 'object', 'schema', policy_schema())), '{scope,queue,policy}', '{"...": "Budget"}', 16384, '{}'),
        ('clear_admission', 'DELETE', '/api/v1/admission/{scope}/{queue}', 'Take the budget of a queue away; what was changed when stays on record.',
         f.scope || f.queue, '{scope,queue}', '{"queue": "text", "cleared": "boolean"}', 0, '{}'),

        ('list_tokens', 'GET', '/api/v1/tokens', 'Your operator tokens, newest first, revoked and expired ones too.', f.page, '{}', '{"tokens": ["Token"], "next_cursor": "text|null"}', 0, '{}'),
        ('create_token', 'POST', '/api/v1/tokens', 'Make an operator token, which acts as you. It is shown this once.',
         '{"name": {"in": "body", "type": "string", "minLength": 1, "maxLength": 100}, "expires_at": {"in": "body", "type": "string", "format": "date-time"}}', '{name}', '{"token": "Token", "secret": "text"}', 65536, '{}'),
        ('revoke_token', 'DELETE', '/api/v1/tokens/{token}', 'Revoke an operator token for good.', '{"token": {"in": "path", "type": "string", "description": "its name or id, not the token itself"}}', '{token}',
         '{"id": "uuid", "revoked": "boolean"}', 0, '{}'),
        ('health', 'GET', '/api/v1/health', 'When each sweep last ran, and which of your queues are stalled (at most 200).', '{}', '{}', '{"sweeps": ["Sweep"], "stalled": ["Stall"]}', 0, '{}')
    ) t (name, method, path, description, input, required, answer, body_limit, shell)
$$;
comment on function switchboard.api_operations() is
'The register of the REST operations: method and path, arguments as JSON Schema properties (input) with where each comes from (in: path, query, body, or whole body), which are required, the shape of the answer (as api_shapes() writes it), how many bytes of body there may be, and what the shell adds (shell: secret, the argument that may give one, or true; outbound_url, the argument that is an address which will be called; public_url).';

create or replace function switchboard.query_value(p_schema jsonb, p_name text, p_text text) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    case p_schema ->> 'type'
        when 'integer' then
            if p_text !~ '^-?[0-9]{1,9}$' then
                perform refuse_argument(p_name, 'must be of type integer, of at most nine digits');
            end if;
            return to_jsonb(p_text::integer);
        when 'boolean' then
            if p_text not in ('true', 'false') then
                perform refuse_argument(p_name, 'must be true or false');
            end if;
            return to_jsonb(p_text::boolean);
        else return to_jsonb(p_text);
    end case;
end $$;
comment on function switchboard.query_value(jsonb, text, text) is 'A value of a query string as what its schema says it is.';

create or replace function switchboard.checked_request(p_request jsonb, p_input jsonb, p_required text[]) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_whole text := (select k from jsonb_each(p_input) i (k, v) where i.v ->> 'in' = 'whole body');
    v_field record;
    v_args  jsonb := '{}';
begin
    for v_field in
        select s.place, f.key, f.value from (values ('path'), ('query'), ('body')) s (place)
        cross join lateral jsonb_each(case when s.place = 'body' and v_whole is not null then '{}' else coalesce(nullif(p_request -> s.place, 'null'), '{}') end) f
    loop
        if p_input -> v_field.key ->> 'in' is distinct from v_field.place then
            perform refuse_argument(coalesce(nullif(one_line(v_field.key, 40), ''), 'a field'), 'is not an argument of this address: /api/v1/openapi.json lists them');
        end if;
        v_args := v_args || jsonb_build_object(v_field.key, case when v_field.place = 'query'
            then query_value(p_input -> v_field.key, v_field.key, v_field.value #>> '{}') else v_field.value end);
    end loop;
    if v_whole is not null then
        v_args := v_args || jsonb_build_object(v_whole, coalesce(p_request -> 'body', 'null'));
    end if;
    perform check_arguments(v_args, p_input, p_required);
    return v_args;
end $$;
comment on function switchboard.checked_request(jsonb, jsonb, text[]) is
'The arguments of a REST call ({path, query, body}: objects; body may be null) in one object, checked against the register: unknown, misplaced, missing and wrongly typed ones are refused, naming the field (invalid_argument). Ranges are for the functions themselves.';

create or replace function switchboard.own_endpoint_named(p_slug_or_id text, p_human_id uuid) returns uuid
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid;
begin
    select e.id into v_id from endpoints e
    where e.human_id = p_human_id and (e.slug = p_slug_or_id or e.id = as_uuid(p_slug_or_id)) order by e.slug = p_slug_or_id desc limit 1;
    if v_id is null then
        perform refuse('not_found', 'there is no such endpoint: name one of yours by its slug or id');
    end if;
    return v_id;
end $$;
comment on function switchboard.own_endpoint_named(text, uuid) is 'The endpoint of the human with this slug or id; foreign and unknown ones are not_found alike. Reads endpoints.';

create or replace function switchboard.run_operation(p_human_id uuid, p_operation text, p_args jsonb, p_shell jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    case p_operation
        when 'whoami' then
            return jsonb_build_object('human', (select jsonb_build_object('id', h.id, 'name', h.name) from humans h where h.id = p_human_id));
        when 'list_todos' then return api_list_todos(p_human_id, p_args);
        when 'create_todo' then return api_create_todo(p_human_id, p_args);
        when 'list_queues' then return api_list_queues(p_human_id, p_args);
        when 'list_admission', 'get_admission', 'set_admission', 'clear_admission' then return api_admission(p_human_id, p_operation, p_args);
        when 'list_endpoints', 'vend_endpoint' then return api_endpoints(p_human_id, p_operation, p_args);
        when 'get_endpoint', 'set_grant', 'set_default_lease', 'set_retention', 'rotate_credential', 'revoke_endpoint' then
            return api_about_endpoint(own_endpoint_named(p_args ->> 'endpoint', p_human_id), p_operation, p_args);
        when 'list_webhooks', 'create_webhook' then return api_webhooks(p_human_id, p_operation, p_args, p_shell);
        when 'get_webhook', 'rotate_webhook', 'delete_webhook', 'hold_webhook', 'unhold_webhook', 'list_webhook_routes', 'add_webhook_route', 'remove_webhook_route' then
            return api_about_webhook(p_human_id, webhook_endpoint(p_args ->> 'id', p_human_id), p_operation, p_args, p_shell);
        when 'list_events', 'get_event', 'read_event', 'replay_event' then return api_events(p_human_id, p_operation, p_args);
        when 'list_hooks', 'create_hook', 'rotate_hook', 'delete_hook' then return api_hooks(p_human_id, p_operation, p_args, p_shell);
        when 'list_tokens', 'create_token', 'revoke_token' then return api_tokens(p_human_id, p_operation, p_args);
        when 'health' then return api_health(p_human_id);
        else return api_about_todo(p_human_id, p_operation, p_args);
    end case;
end $$;
comment on function switchboard.run_operation(uuid, text, jsonb, jsonb) is
'Runs one operation for the authenticated human; arguments are checked. p_shell: what the shell added (sealed_secret, token_digest in hex, secret_form). A plain CASE: no stored text is ever executed.';

create or replace function switchboard.retry_after(p_error jsonb) returns integer
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    case p_error ->> 'code'
        when 'deferred' then  -- without a time only a person can say: look again in a minute
            return greatest(1, coalesce(ceil(extract(epoch from (p_error ->> 'next_eligible_at')::timestamptz - clock()))::integer, 60));
        when 'unavailable' then return 1;
        else return null;
    end case;
end $$;
comment on function switchboard.retry_after(jsonb) is 'Seconds for Retry-After of an error object; NULL: the same call would be refused again.';

create or replace function switchboard.call_api(p_token_digest bytea, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who       record := identify_operator(p_token_digest);
    v_operation record;
    v_args      jsonb;
    v_answer    jsonb;
    v_message   text;
    v_detail    text;
begin
    if v_who.human_id is null then
        return unauthenticated();
    end if;
    perform note_token_use(v_who.token_id, v_who.last_used_at);
    select o.* into v_operation from api_operations() o where o.name = p_operation;
    if not found then
        return error_value('SB404', 'there is nothing at this address: check it', null);
    end if;
    begin
        v_args := checked_request(coalesce(p_args, '{}'), v_operation.input, v_operation.required);
        return run_operation(v_who.human_id, p_operation, v_args, coalesce(p_args -> 'shell', '{}'));
    exception when others then
        get stacked diagnostics v_message = message_text, v_detail = pg_exception_detail;
        v_answer := error_value(sqlstate, v_message, v_detail);
    end;
    if v_answer -> 'error' ->> 'code' = 'deferred' then  -- a claim, all of which was undone
        perform note_refusal(endpoint_of(v_args ->> 'id', v_who.human_id), v_answer -> 'error' ->> 'queue', v_answer -> 'error' ->> 'reason');
    end if;
    return v_answer || jsonb_strip_nulls(jsonb_build_object('retry_after', retry_after(v_answer -> 'error')));
end $$;
comment on function switchboard.call_api(bytea, text, jsonb) is
'One operation, whole: authenticates the human by the SHA-256 of an operator token or of a session''s secret, checks the arguments ({path, query, body}: objects, and shell: what the shell added) against api_operations(), runs the operation for that human, and returns its answer, or {"error": {code, message, …details}, "retry_after": seconds}. Never raises for errors of the product. Writes operator_tokens, admission_refusals, and what the operation writes.';
