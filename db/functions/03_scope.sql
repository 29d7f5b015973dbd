-- Scope: whose rows a caller may touch.
--
-- scope() is the only gate. It turns the endpoint that a caller names into a uuid, or into NULL,
-- and every query predicates on the result: NULL takes the same path as an unknown endpoint, so
-- that malformed, foreign and never-minted ids cannot be told apart (SPEC-0003, Endpoint Ownership).
--   A member of switchboard_worker bound to an endpoint (endpoint_logins, looked up first: a superuser
--   is a member of every role) owns that one while it is active, whatever it passes, with its granted verbs only.
--   A member of switchboard_app or switchboard_operator may name any endpoint.
--   Anybody else owns nothing.

create or replace function switchboard.is_active(p_revoked_at timestamptz, p_expires_at timestamptz, p_at timestamptz) returns boolean
language sql immutable set search_path = switchboard, pg_temp
as $$
    select p_revoked_at is null and (p_expires_at is null or p_expires_at > p_at)
$$;
comment on function switchboard.is_active(timestamptz, timestamptz, timestamptz) is
'Whether an endpoint with these times is active at p_at: neither revoked nor expired.';

create or replace function switchboard.scope(p_endpoint_id text, p_verb text default null) returns uuid
language plpgsql stable
as $$
begin
    if pg_has_role(session_user, 'switchboard_worker', 'member') then  -- true for superusers, too
        if exists (select from switchboard.endpoint_logins l where l.login = session_user) then
            return switchboard.bound_scope(switchboard.as_uuid(p_endpoint_id), p_endpoint_id is null, p_verb);
        end if;
    end if;
    if pg_has_role(session_user, 'switchboard_app', 'member') or pg_has_role(session_user, 'switchboard_operator', 'member') then
        return switchboard.as_uuid(p_endpoint_id);
    end if;
    return null;
end $$;
comment on function switchboard.scope(text, text) is
'The endpoint that the session may act for when it names p_endpoint_id; NULL: none. A bound login without the verb p_verb is forbidden. On the path of every call, so it qualifies names instead of pinning search_path. Reads endpoint_logins, endpoints.';

create or replace function switchboard.bound_scope(p_endpoint_id uuid, p_own boolean, p_verb text) returns uuid
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_bound endpoints;
begin
    select e.* into v_bound from endpoint_logins l join endpoints e on e.id = l.endpoint_id where l.login = session_user;
    if (not p_own and p_endpoint_id is distinct from v_bound.id) or not is_active(v_bound.revoked_at, v_bound.expires_at, clock()) then
        return null;
    elsif not granted_tool(v_bound.verbs, p_verb) then
        perform refuse('forbidden', null, jsonb_build_object('field', 'verb', 'verb', p_verb));
    end if;
    return v_bound.id;
end $$;
comment on function switchboard.bound_scope(uuid, boolean, text) is
'scope() of a login that is bound: its endpoint when it names that one or none (p_own), and the endpoint is active. Reads endpoint_logins, endpoints.';
