-- Scope: whose rows a caller may touch.
--
-- scope() is the only gate (scope_at() is the same, with the time of the call). It turns the endpoint that a caller names into a uuid, or into NULL,
-- and every query predicates on the result: NULL takes the same path as an unknown endpoint, so
-- that malformed, foreign and never-minted ids cannot be told apart (SPEC-0003, Endpoint Ownership).
--   A login bound to an endpoint (endpoint_logins, looked up first: a superuser is a member of
--   every role) owns that one while it is active, whatever it passes, with its granted verbs only.
--   A member of switchboard_app or switchboard_operator may name any endpoint.
--   Anybody else owns nothing.

create or replace function switchboard.is_active(p_revoked_at timestamptz, p_expires_at timestamptz, p_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select p_revoked_at is null and (p_expires_at is null or p_expires_at > p_at)
$$;
comment on function switchboard.is_active(timestamptz, timestamptz, timestamptz) is
'Whether an endpoint with these times is active at p_at: neither revoked nor expired.';

create or replace function switchboard.scope_at(p_endpoint_id text, p_verb text default null, out endpoint_id uuid, out at timestamptz, out lease_seconds integer)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_bound   endpoints;
    v_session text := current_setting('switchboard.test_now', true);
begin
    -- one statement for the gate and the clock, since every call pays for both; the clock is now()'s
    select l.endpoint_id, case when s.is_test then s.test_now end, s.default_lease_seconds
    into v_bound.id, at, lease_seconds
    from settings s left join endpoint_logins l on l.login = session_user;
    at := case when v_session <> '' then switchboard.now() else coalesce(at, clock_timestamp()) end;
    if v_bound.id is not null then
        select * into v_bound from endpoints e where e.id = v_bound.id;
        if (p_endpoint_id is not null and as_uuid(p_endpoint_id) is distinct from v_bound.id)
           or not is_active(v_bound.revoked_at, v_bound.expires_at, at) then
            return;
        elsif not p_verb = any (v_bound.verbs) then
            perform refuse('forbidden', null, jsonb_build_object('field', 'verb', 'verb', p_verb));
        end if;
        endpoint_id := v_bound.id;
    elsif pg_has_role(session_user, 'switchboard_app', 'member') or pg_has_role(session_user, 'switchboard_operator', 'member') then
        endpoint_id := as_uuid(p_endpoint_id);
    end if;
end $$;
comment on function switchboard.scope_at(text, text) is
'The gate and the clock in one reading: scope(p_endpoint_id, p_verb), now() and the installation''s default lease. Reads settings, endpoint_logins, endpoints.';

create or replace function switchboard.scope(p_endpoint_id text, p_verb text default null) returns uuid
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
begin
    return (scope_at(p_endpoint_id, p_verb)).endpoint_id;
end $$;
comment on function switchboard.scope(text, text) is
'The endpoint that the session may act for when it names p_endpoint_id; NULL: none. A bound login without the verb p_verb is forbidden. Reads endpoint_logins, endpoints.';
