-- REST on endpoints, their queues, operator tokens and health: the branches of run_operation() for who may work.
--
-- An endpoint is named by slug or id and found among the human's own before anything else is looked at, so that
-- a foreign one is as unknown as one that never was. What it may do, its credentials and its end are the
-- functions that a person at a prompt calls. A credential, and an operator token, stand in the one answer that
-- makes them, and in no other. Lock order: as those functions have it, the endpoint's row first.

create or replace function switchboard.api_endpoint(p_endpoint switchboard.endpoints) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(
        'id', p_endpoint.id, 'slug', p_endpoint.slug, 'queues', p_endpoint.queues, 'verbs', p_endpoint.verbs, 'webhook_max', p_endpoint.webhook_max,
        'webhook_source_types', p_endpoint.webhook_source_types, 'default_lease_seconds', p_endpoint.default_lease_seconds,
        'retention_days', p_endpoint.retention_days, 'retention_rows', p_endpoint.retention_rows,
        'active', is_active(p_endpoint.revoked_at, p_endpoint.expires_at, clock()), 'expires_at', p_endpoint.expires_at, 'revoked_at', p_endpoint.revoked_at,
        'created_at', p_endpoint.created_at, 'updated_at', p_endpoint.updated_at, 'last_seen_at', last_seen(p_endpoint.id))
$$;
comment on function switchboard.api_endpoint(switchboard.endpoints) is 'An endpoint as its human sees it. default_lease_seconds, retention_days, retention_rows: null: as the installation says.';

create or replace function switchboard.api_endpoint_by_id(p_endpoint_id uuid) returns jsonb
language sql volatile set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('endpoint', api_endpoint(e)) from endpoints e where e.id = p_endpoint_id
$$;
comment on function switchboard.api_endpoint_by_id(uuid) is '{endpoint}: as it is now, also after a change of the same call. Reads endpoints.';

create or replace function switchboard.expiry_argument(p_args jsonb) returns timestamptz
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_days integer := (p_args ->> 'expires_in_days')::numeric::integer;
begin
    if v_days not between 1 and 36500 then
        perform refuse_argument('expires_in_days', 'must be 1 to 36500');
    elsif v_days is not null and p_args ->> 'expires_at' is not null then
        perform refuse_argument('expires_in_days', 'is not for use with expires_at: give one of them');
    end if;
    return coalesce(clock() + make_interval(days => v_days), time_argument(p_args, 'expires_at'));
end $$;
comment on function switchboard.expiry_argument(jsonb) is 'When something ends: expires_in_days from now (1 to 36500), or expires_at; NULL: never. Errors: invalid_argument.';

create or replace function switchboard.api_endpoints(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_limit   integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_rows    jsonb[];
    v_cursors text[];
    v_vended  record;
begin
    if p_operation = 'vend_endpoint' then
        select * into v_vended from vend_endpoint(p_human_id, p_args ->> 'slug', texts_argument(p_args, 'queues'), texts_argument(p_args, 'verbs'),
            coalesce((p_args ->> 'webhook_max')::numeric::integer, 1), texts_argument(p_args, 'webhook_source_types'), expiry_argument(p_args));
        return api_endpoint_by_id(v_vended.endpoint_id) || jsonb_build_object('credential', v_vended.credential, 'mcp_url', '$public_url/mcp/' || v_vended.slug);
    end if;
    select array_agg(api_endpoint(k.e) order by k.slug), array_agg(k.slug order by k.slug) into v_rows, v_cursors
    from (select e, e.slug from endpoints e where e.human_id = p_human_id and (p_args ->> 'cursor' is null or e.slug > p_args ->> 'cursor')
          order by e.slug limit v_limit) k;
    return api_page('endpoints', v_rows, v_cursors, v_limit);
end $$;
comment on function switchboard.api_endpoints(uuid, text, jsonb) is 'The part of run_operation() that lists the human''s endpoints, by slug, and vends them. Reads endpoints.';

create or replace function switchboard.api_about_endpoint(p_endpoint_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_id   text  := p_endpoint_id;
    v_more jsonb := '{}';
begin
    case p_operation
        when 'get_endpoint' then
            v_more := jsonb_build_object('credentials', coalesce((
                select jsonb_agg(jsonb_build_object('created_at', c.created_at, 'expires_at', c.expires_at) order by c.created_at desc, c.id)
                from credentials c where c.endpoint_id = p_endpoint_id and (c.expires_at is null or c.expires_at > clock())), '[]'));
        when 'set_grant' then
            perform set_grant(v_id, texts_argument(p_args, 'queues'), texts_argument(p_args, 'verbs'), (p_args ->> 'webhook_max')::numeric::integer, texts_argument(p_args, 'webhook_source_types'));
        when 'set_default_lease' then perform set_default_lease(v_id, (p_args ->> 'lease_ttl_seconds')::numeric::integer);
        when 'set_retention' then perform set_retention(v_id, (p_args ->> 'days')::numeric::integer, (p_args ->> 'rows')::numeric::bigint);
        when 'rotate_credential' then
            v_more := jsonb_build_object('credential', rotate_credential(v_id, coalesce((p_args ->> 'grace_seconds')::numeric::integer, 0)),
                                         'mcp_url', '$public_url/mcp/' || (select e.slug from endpoints e where e.id = p_endpoint_id));
        when 'revoke_endpoint' then v_more := jsonb_build_object('dead_lettered', revoke_endpoint(v_id));
    end case;
    return api_endpoint_by_id(p_endpoint_id) || v_more;
end $$;
comment on function switchboard.api_about_endpoint(uuid, text, jsonb) is 'The part of run_operation() that is about one endpoint, which is the human''s. Reads endpoints, credentials.';

create or replace function switchboard.api_list_queues(p_human_id uuid, p_args jsonb) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_only     uuid    := own_endpoint_asked(p_args, p_human_id);
    v_endpoint endpoints;
    v_rows     jsonb   := '[]';
    v_count    integer := 0;
begin
    for v_endpoint in
        select e.* from endpoints e
        where e.human_id = p_human_id and (v_only is null or e.id = v_only) and (p_args ->> 'cursor' is null or e.slug > p_args ->> 'cursor')
        order by e.slug limit v_limit
    loop
        v_count := v_count + 1;
        v_rows := v_rows || coalesce((
            select jsonb_agg(jsonb_build_object('endpoint_id', v_endpoint.id, 'endpoint', v_endpoint.slug, 'granted', q.queue = any (v_endpoint.queues)) || to_jsonb(q) order by q.queue)
            from queue_counts(v_endpoint.id::text) q), '[]');
    end loop;
    return jsonb_build_object('queues', v_rows, 'next_cursor', case when v_count = v_limit then v_endpoint.slug end);
end $$;
comment on function switchboard.api_list_queues(uuid, jsonb) is 'The queues of the human''s endpoints, as queue_counts, limit endpoints a page. Errors: invalid_argument, not_found (endpoint). Reads endpoints and what queue_counts reads.';

create or replace function switchboard.api_token(p_token switchboard.operator_tokens) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object('id', p_token.id, 'name', p_token.name, 'active', is_active(p_token.revoked_at, p_token.expires_at, clock()),
        'created_at', p_token.created_at, 'expires_at', p_token.expires_at, 'revoked_at', p_token.revoked_at, 'last_used_at', p_token.last_used_at)
$$;
comment on function switchboard.api_token(switchboard.operator_tokens) is 'An operator token as its human sees it, without the token itself.';

create or replace function switchboard.api_tokens(p_human_id uuid, p_operation text, p_args jsonb) returns jsonb
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_limit   integer := check_limit((p_args ->> 'limit')::integer, 50, 200);
    v_cursor  record  := read_cursor(p_args ->> 'cursor');
    v_rows    jsonb[];
    v_cursors text[];
    v_made    record;
begin
    if p_operation = 'create_token' then
        select * into v_made from create_operator_token(p_human_id, p_args ->> 'name', time_argument(p_args, 'expires_at'));
        return jsonb_build_object('token', (select api_token(t) from operator_tokens t where t.id = v_made.token_id), 'secret', v_made.token);
    elsif p_operation = 'revoke_token' then
        return jsonb_build_object('id', revoke_operator_token(p_human_id, p_args ->> 'token'), 'revoked', true);
    end if;
    select array_agg(api_token(k.t) order by k.at desc, k.id desc), array_agg(cursor_of(k.at, k.id) order by k.at desc, k.id desc) into v_rows, v_cursors
    from (select t, t.created_at as at, t.id from operator_tokens t
          where t.human_id = p_human_id and (v_cursor.id is null or (t.created_at, t.id) < (v_cursor.at, v_cursor.id))
          order by t.created_at desc, t.id desc limit v_limit) k;
    return api_page('tokens', v_rows, v_cursors, v_limit);
end $$;
comment on function switchboard.api_tokens(uuid, text, jsonb) is 'The part of run_operation() that is about the human''s operator tokens. Reads operator_tokens.';

create or replace function switchboard.api_health(p_human_id uuid) returns jsonb
language sql stable set search_path = switchboard, pg_temp
as $$
    select jsonb_build_object(
        'sweeps', (select jsonb_agg(to_jsonb(s)) from sweep_status() s),
        'stalled', (
            select coalesce(jsonb_agg(jsonb_build_object('endpoint_id', k.endpoint_id, 'endpoint', k.slug, 'queue', k.queue, 'nudges', k.nudges,
                                                         'last_nudged_at', k.last_nudged_at, 'progressed_at', k.progressed_at) order by k.last_nudged_at desc, k.slug, k.queue), '[]')
            from (select l.*, e.slug from endpoints e join queue_stall_nudges l on l.endpoint_id = e.id where e.human_id = p_human_id
                  order by l.last_nudged_at desc, e.slug, l.queue limit 200) k))
$$;
comment on function switchboard.api_health(uuid) is 'The sweeps, and the queues of the human''s endpoints that were nudged because they stalled: the latest 200; progressed_at: somebody came for one since. Reads sweeps, endpoints, queue_stall_nudges.';
