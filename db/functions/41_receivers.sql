-- Receivers: the URLs that webhooks are sent to, their secrets, and the routes by which deliveries fan out.
--
-- A receiver belongs to one endpoint and puts its deliveries on one queue. The grant of the endpoint says
-- how many it may have, of which source types, on which queues; its row is locked while that is checked,
-- so that the ceiling holds under a race. What proves a delivery is minted and sealed by the shell; here
-- are only the sealed secret and the digest of the URL's token. Answers name what the shell has to fill
-- in, the one time it is shown: "$secret", "$token", "$ingest_url".
-- The owner is always a target; a route adds another endpoint of the same human. Whatever else is named as
-- a target, nothing tells whether it exists.
-- Rotation keeps what it replaces valid for 24 hours: the secret of a type that signs, the URL's token of
-- one that does not (there the token is the secret). Every change is in webhook_audit, and said on
-- switchboard_control, so that gateways drop what they remember.
-- Lock order: the endpoint's row, then the receiver, then its routes.

create or replace function switchboard.note_webhook(
    p_endpoint_id uuid, p_webhook_id uuid, p_actor text, p_action text, p_event_id uuid default null, p_todo_id uuid default null,
    p_detail jsonb default '{}')
returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now timestamptz := clock();
begin
    insert into webhook_audit (endpoint_id, id, at, actor, action, webhook_id, event_id, todo_id, detail)
    values (p_endpoint_id, new_id(v_now), v_now, p_actor, p_action, p_webhook_id, p_event_id, p_todo_id, p_detail);
    perform pg_notify('switchboard_control', p_endpoint_id::text);
end $$;
comment on function switchboard.note_webhook(uuid, uuid, text, text, uuid, uuid, jsonb) is
'Writes an entry of webhook_audit and says on switchboard_control that the endpoint changed.';

create or replace function switchboard.edge_actor() returns text
language sql stable set search_path = switchboard, pg_temp
as $$
    select case when pg_has_role(session_user, 'switchboard_operator', 'member') then 'op:' else 'sql:' end || session_user
$$;
comment on function switchboard.edge_actor() is 'Who acts when a SQL caller names an endpoint: op:<login> for an operator, else sql:<login>.';

create or replace function switchboard.check_secret(p_source_type text, p_sealed_secret bytea, p_token_digest bytea, p_secret_form text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    if coalesce(octet_length(p_sealed_secret), 0) = 0 or octet_length(p_token_digest) is distinct from 32 then
        perform refuse_argument('signing_secret', 'is missing');
    elsif p_secret_form is null or p_secret_form not in ('made', 'text', 'base64', 'malformed') then
        perform refuse_argument('secret_form', 'must be made, text, base64 or malformed');
    elsif p_secret_form <> 'made' and not signs(p_source_type) then
        perform refuse_argument('signing_secret', 'is not used by this source type: leave it out; the token in the URL is its secret');
    elsif p_secret_form = 'malformed' and p_source_type = 'standard' then
        perform refuse_argument('signing_secret', 'begins with whsec_, but what follows is not base64: copy it again');
    end if;
end $$;
comment on function switchboard.check_secret(text, bytea, bytea, text) is
'Refuses a missing secret or token, a secret for a type that signs nothing, and a malformed whsec_ secret where it is base64 (interfaces.md, senders).';

create or replace function switchboard.signs(p_source_type text) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select exists (select from source_types() s where s.source_type = p_source_type and s.trust_mode = 'signed')
$$;
comment on function switchboard.signs(text) is 'Whether deliveries of this source type are signed with a secret; else the URL''s token is all there is.';

create or replace function switchboard.shown_secret(p_source_type text) returns text
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when signs(p_source_type) then '$secret' when p_source_type <> 'open' then '$token' end
$$;
comment on function switchboard.shown_secret(text) is 'What the shell shows as signing_secret: the secret it sealed, the token of the URL, or nothing (NULL).';

create or replace function switchboard.add_webhook(
    p_endpoint switchboard.endpoints, p_actor text, p_source_type text, p_target_queue text, p_sealed_secret bytea, p_token_digest bytea, p_secret_form text)
returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_trust text := (select s.trust_mode from source_types() s where s.source_type = p_source_type);
    v_id    uuid;
begin
    if v_trust is null then
        perform refuse_argument('source_type', 'must be one of ' || (select string_agg(s.source_type, ', ') from source_types() s));
    elsif not p_source_type = any (p_endpoint.webhook_source_types) then
        perform refuse('forbidden', 'the grant of this endpoint does not cover that source type: ask its owner', '{"field": "source_type"}');
    end if;
    perform check_queue(p_target_queue, p_endpoint.queues);
    perform check_secret(p_source_type, p_sealed_secret, p_token_digest, p_secret_form);
    if (select count(*) from endpoint_webhooks w where w.endpoint_id = p_endpoint.id) >= p_endpoint.webhook_max then
        perform refuse('ceiling_exceeded', null, jsonb_build_object('ceiling', p_endpoint.webhook_max));
    end if;
    insert into endpoint_webhooks (endpoint_id, source_type, target_queue, trust_mode, token_digest, sealed_secret, created_at)
    values (p_endpoint.id, p_source_type, p_target_queue, v_trust, p_token_digest, p_sealed_secret, clock())
    on conflict (token_digest) do nothing returning id into v_id;
    if v_id is null then
        perform refuse('conflict', 'there is a receiver with that token: mint a new one');
    end if;
    perform note_webhook(p_endpoint.id, v_id, p_actor, 'created');
    return jsonb_build_object('webhook_id', v_id, 'source_type', p_source_type, 'target_queue', p_target_queue, 'trust_mode', v_trust,
                              'ingest_url', '$ingest_url', 'signing_secret', shown_secret(p_source_type));
end $$;
comment on function switchboard.add_webhook(switchboard.endpoints, text, text, text, bytea, bytea, text) is
'create_webhook by p_actor for an endpoint whose row is locked, so that the ceiling holds under a race. Writes endpoint_webhooks, webhook_audit.';

create or replace function switchboard.create_webhook(
    p_endpoint_id text, p_source_type text, p_target_queue text, p_sealed_secret bytea, p_token_digest bytea, p_secret_form text default 'made')
returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return add_webhook(own_endpoint(p_endpoint_id, 'create_webhook'), edge_actor(), p_source_type, p_target_queue, p_sealed_secret, p_token_digest, p_secret_form);
end $$;
comment on function switchboard.create_webhook(text, text, text, bytea, bytea, text) is
'A receiver for the endpoint. p_source_type: one of source_types() within the grant; p_target_queue: a granted queue; p_sealed_secret: the signing secret as the shell sealed it; p_token_digest: SHA-256 of the token in its URL; p_secret_form: made (by the shell), text, base64 or malformed (given, as it looks after whsec_). Returns webhook_id, source_type, target_queue, trust_mode, and what the shell fills in: ingest_url, signing_secret. Errors: not_found, conflict, invalid_argument, forbidden, ceiling_exceeded. Writes endpoint_webhooks, webhook_audit.';

create or replace function switchboard.own_webhook(p_endpoint switchboard.endpoints, p_webhook_id text) returns switchboard.endpoint_webhooks
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoint_webhooks;
begin
    select * into v_row from endpoint_webhooks w where w.endpoint_id = p_endpoint.id and w.id = as_uuid(p_webhook_id) for no key update;
    if not found then
        perform refuse('not_found', 'there is no such receiver here: list_webhooks shows them');
    end if;
    return v_row;
end $$;
comment on function switchboard.own_webhook(switchboard.endpoints, text) is 'Locks and returns a receiver of the endpoint, else not_found: also for one of another endpoint.';

create or replace function switchboard.turn_webhook(
    p_endpoint switchboard.endpoints, p_actor text, p_webhook_id text, p_sealed_secret bytea, p_token_digest bytea, p_secret_form text)
returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks := own_webhook(p_endpoint, p_webhook_id);
    v_signs   boolean := signs(v_webhook.source_type);
    v_until   timestamptz := clock() + interval '24 hours';
begin
    perform check_secret(v_webhook.source_type, p_sealed_secret, p_token_digest, p_secret_form);
    if not v_signs and exists (select from endpoint_webhooks w where w.token_digest = p_token_digest) then
        perform refuse('conflict', 'there is a receiver with that token: mint a new one');
    end if;
    update endpoint_webhooks w
    set sealed_secret         = case when v_signs then p_sealed_secret else w.sealed_secret end,
        previous_secret       = case when v_signs then w.sealed_secret end,
        token_digest          = case when v_signs then w.token_digest else p_token_digest end,
        previous_token_digest = case when not v_signs then w.token_digest end,
        previous_valid_until  = v_until
    where w.endpoint_id = v_webhook.endpoint_id and w.id = v_webhook.id;
    perform note_webhook(v_webhook.endpoint_id, v_webhook.id, p_actor, 'rotated');
    return jsonb_build_object('webhook_id', v_webhook.id, 'source_type', v_webhook.source_type, 'trust_mode', v_webhook.trust_mode,
                              'previous_valid_until', v_until, 'signing_secret', shown_secret(v_webhook.source_type))
        || case when v_signs then '{}' else '{"ingest_url": "$ingest_url"}'::jsonb end;
end $$;
comment on function switchboard.turn_webhook(switchboard.endpoints, text, text, bytea, bytea, text) is 'rotate_webhook by p_actor for an endpoint whose row is locked.';

create or replace function switchboard.rotate_webhook(
    p_endpoint_id text, p_webhook_id text, p_sealed_secret bytea, p_token_digest bytea, p_secret_form text default 'made')
returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return turn_webhook(own_endpoint(p_endpoint_id, 'rotate_webhook'), edge_actor(), p_webhook_id, p_sealed_secret, p_token_digest, p_secret_form);
end $$;
comment on function switchboard.rotate_webhook(text, text, bytea, bytea, text) is
'A new secret for a receiver (a new URL for a type that signs nothing); what it replaces is accepted for 24 hours more, what that one had replaced ends now. Arguments as create_webhook. Returns webhook_id, source_type, trust_mode, previous_valid_until, and what the shell fills in. Errors: not_found, conflict, invalid_argument. Writes endpoint_webhooks, webhook_audit.';

create or replace function switchboard.drop_webhook(p_endpoint switchboard.endpoints, p_actor text, p_webhook_id text) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks := own_webhook(p_endpoint, p_webhook_id);
begin
    delete from endpoint_webhooks w where w.endpoint_id = v_webhook.endpoint_id and w.id = v_webhook.id;
    perform note_webhook(v_webhook.endpoint_id, v_webhook.id, p_actor, 'deleted', p_detail => jsonb_build_object('source_type', v_webhook.source_type));
    return jsonb_build_object('webhook_id', v_webhook.id, 'deleted', true);
end $$;
comment on function switchboard.drop_webhook(switchboard.endpoints, text, text) is 'delete_webhook by p_actor for an endpoint whose row is locked.';

create or replace function switchboard.delete_webhook(p_endpoint_id text, p_webhook_id text) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return drop_webhook(own_endpoint(p_endpoint_id, 'delete_webhook', true), edge_actor(), p_webhook_id);
end $$;
comment on function switchboard.delete_webhook(text, text) is
'Ends a receiver and its routes: its URL answers 404 from now on. Its todos, events and audit stay. Also when its endpoint is revoked: its routes would go on. Returns webhook_id, deleted. Errors: not_found. Writes endpoint_webhooks, webhook_routes, webhook_audit.';

create or replace function switchboard.list_webhooks(p_endpoint_id text)
returns table (webhook_id uuid, source_type text, target_queue text, trust_mode text, held boolean, routes integer, previous_valid_until timestamptz, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select w.id, w.source_type, w.target_queue, w.trust_mode, w.held,
           (select count(*)::integer from webhook_routes r where r.endpoint_id = w.endpoint_id and r.webhook_id = w.id),
           case when w.previous_valid_until > clock() then w.previous_valid_until end, w.created_at
    from endpoint_webhooks w where w.endpoint_id = scope(p_endpoint_id, 'list_webhooks') order by w.created_at, w.id
$$;
comment on function switchboard.list_webhooks(text) is
'The receivers of the endpoint, oldest first, with the number of their routes; neither tokens nor secrets. held: an operator holds their deliveries; previous_valid_until: end of a rotation''s grace while it lasts. Reads endpoint_webhooks, webhook_routes.';

create or replace function switchboard.may_take(p_endpoint switchboard.endpoints, p_queue text, p_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select is_active(p_endpoint.revoked_at, p_endpoint.expires_at, p_at) and p_queue = any (p_endpoint.queues)
$$;
comment on function switchboard.may_take(switchboard.endpoints, text, timestamptz) is 'Whether the endpoint is a live target of deliveries for the queue: active, and the queue granted.';

create or replace function switchboard.sibling(p_human_id uuid, p_slug_or_id text) returns uuid
language sql stable set search_path = switchboard, pg_temp
as $$
    -- a login may read how many rows its session fetched of which table: so only the human's own are fetched, whatever is asked for
    select k.id from (select e.id, e.slug from endpoints e where e.human_id = p_human_id offset 0) k
    where k.slug = p_slug_or_id or k.id = as_uuid(p_slug_or_id) order by k.slug = p_slug_or_id desc limit 1
$$;
comment on function switchboard.sibling(uuid, text) is 'The endpoint of the human with this slug or id; NULL: none. Looks at endpoints of the human alone. Reads endpoints.';

create or replace function switchboard.add_route(p_endpoint switchboard.endpoints, p_actor text, p_webhook_id text, p_target text) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks := own_webhook(p_endpoint, p_webhook_id);
    v_target  endpoints;
begin
    select * into v_target from endpoints e
    where e.id = sibling(p_endpoint.human_id, p_target) and may_take(e, v_webhook.target_queue, clock());
    if not found then
        perform refuse('forbidden', 'that is no endpoint this receiver may be routed to: it must be an active one of the same owner whose grant covers the receiver''s queue',
                       '{"field": "target_endpoint_id"}');
    elsif v_target.id <> p_endpoint.id and (select count(*) from webhook_routes r where r.endpoint_id = v_webhook.endpoint_id and r.webhook_id = v_webhook.id
           and r.target_endpoint_id <> v_target.id) >= 31 then
        perform refuse('ceiling_exceeded', 'a receiver has at most 32 targets: remove a route first', '{"ceiling": 32}');
    end if;
    insert into webhook_routes (endpoint_id, webhook_id, target_endpoint_id, created_at)
    select v_webhook.endpoint_id, v_webhook.id, v_target.id, clock() where v_target.id <> p_endpoint.id
    on conflict do nothing;
    if found then
        perform note_webhook(v_webhook.endpoint_id, v_webhook.id, p_actor, 'routed', p_detail => jsonb_build_object('target_endpoint_id', v_target.id));
        return jsonb_build_object('webhook_id', v_webhook.id, 'target_endpoint_id', v_target.id, 'created', true);
    end if;
    return jsonb_build_object('webhook_id', v_webhook.id, 'target_endpoint_id', v_target.id, 'created', false);
end $$;
comment on function switchboard.add_route(switchboard.endpoints, text, text, text) is 'add_webhook_route by p_actor for an endpoint whose row is locked.';

create or replace function switchboard.add_webhook_route(p_endpoint_id text, p_webhook_id text, p_target_endpoint_id text) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return add_route(own_endpoint(p_endpoint_id, 'add_webhook_route'), edge_actor(), p_webhook_id, p_target_endpoint_id);
end $$;
comment on function switchboard.add_webhook_route(text, text, text) is
'Sends the deliveries of the endpoint''s receiver to another endpoint, too, on the same queue. p_target_endpoint_id: id or slug of an active endpoint of the same human whose grant covers the queue; everything else is the same forbidden. Again, or the owner itself: created is false. Returns webhook_id, target_endpoint_id, created. Errors: not_found (receiver), forbidden, ceiling_exceeded (32 targets). Writes webhook_routes, webhook_audit.';

create or replace function switchboard.drop_route(p_endpoint switchboard.endpoints, p_actor text, p_webhook_id text, p_target text) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks := own_webhook(p_endpoint, p_webhook_id);
    v_target  uuid := sibling(p_endpoint.human_id, p_target);
begin
    if v_target = p_endpoint.id then
        perform refuse('conflict', 'the endpoint that owns a receiver is always its target: delete the receiver instead');
    end if;
    delete from webhook_routes r where r.endpoint_id = v_webhook.endpoint_id and r.webhook_id = v_webhook.id and r.target_endpoint_id = v_target;
    if found then
        perform note_webhook(v_webhook.endpoint_id, v_webhook.id, p_actor, 'unrouted', p_detail => jsonb_build_object('target_endpoint_id', v_target));
        return jsonb_build_object('webhook_id', v_webhook.id, 'target_endpoint_id', p_target, 'removed', true);
    end if;
    return jsonb_build_object('webhook_id', v_webhook.id, 'target_endpoint_id', p_target, 'removed', false);
end $$;
comment on function switchboard.drop_route(switchboard.endpoints, text, text, text) is 'remove_webhook_route by p_actor for an endpoint whose row is locked.';

create or replace function switchboard.remove_webhook_route(p_endpoint_id text, p_webhook_id text, p_target_endpoint_id text) returns jsonb
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return drop_route(own_endpoint(p_endpoint_id, 'remove_webhook_route', true), edge_actor(), p_webhook_id, p_target_endpoint_id);
end $$;
comment on function switchboard.remove_webhook_route(text, text, text) is
'Ends a route. p_target_endpoint_id: id or slug; one that is no target, whatever it is: removed is false. Returns webhook_id, target_endpoint_id as given, removed. Errors: not_found (receiver), conflict (the owner is always a target). Writes webhook_routes, webhook_audit.';

create or replace function switchboard.list_webhook_routes(p_endpoint_id text, p_webhook_id text)
returns table (target_endpoint_id uuid, slug text, owner boolean, live boolean, created_at timestamptz)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_webhook endpoint_webhooks;
    v_now     timestamptz := clock();
begin
    select * into v_webhook from endpoint_webhooks w
    where w.endpoint_id = scope(p_endpoint_id, 'list_webhook_routes') and w.id = as_uuid(p_webhook_id);
    if not found then
        perform refuse('not_found', 'there is no such receiver here: list_webhooks shows them');
    end if;
    return query
        select e.id, e.slug, t.owner, may_take(e, v_webhook.target_queue, v_now), t.created_at
        from (select v_webhook.endpoint_id as id, true as owner, v_webhook.created_at
              union all
              select r.target_endpoint_id, false, r.created_at from webhook_routes r
              where r.endpoint_id = v_webhook.endpoint_id and r.webhook_id = v_webhook.id) t
        join endpoints e on e.id = t.id
        order by t.owner desc, e.slug;
end $$;
comment on function switchboard.list_webhook_routes(text, text) is
'Every target of the endpoint''s receiver: its owner first, then its routes by slug; live: whether it gets deliveries now. Errors: not_found. Reads endpoint_webhooks, webhook_routes, endpoints.';
