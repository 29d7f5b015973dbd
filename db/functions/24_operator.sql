-- Operator twins: the same transitions for the human who owns the endpoints (SPEC-0003, Operator Twins).
--
-- They take no endpoint, and find the todo among the endpoints of p_actor_human_id; with NULL among all,
-- which only a member of switchboard_operator may ask for (a DBA at a prompt). The owner is op:<human>.
-- A lease that somebody else holds is ended only with p_force: no attempt is spent by it, and the
-- history says overridden. A live lease is never claimed away.

create or replace function switchboard.acting_owner(p_actor_human_id uuid) returns text
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_name text;
begin
    if exists (select from endpoint_logins l where l.login = session_user) then
        perform refuse('forbidden', 'this login is bound to one endpoint: use the functions that take the endpoint');
    elsif p_actor_human_id is null then
        if not pg_has_role(session_user, 'switchboard_operator', 'member') then
            perform refuse('forbidden', 'acting on every endpoint is for members of switchboard_operator: name the human');
        end if;
        return 'op:' || session_user;
    end if;
    select h.name into v_name from humans h where h.id = p_actor_human_id;
    if not found then
        perform refuse('not_found', 'there is no such human: list_humans shows them');
    end if;
    return 'op:' || v_name;
end $$;
comment on function switchboard.acting_owner(uuid) is 'The owner name under which an operator acts: op:<human>, or op:<login> when no human is named. Errors: forbidden, not_found.';

create or replace function switchboard.endpoint_of(p_id text, p_actor_human_id uuid) returns uuid
language sql stable set search_path = switchboard, pg_temp
as $$
    select t.endpoint_id from endpoints e join todos t on t.endpoint_id = e.id
    where t.id = as_uuid(p_id) and (p_actor_human_id is null or e.human_id = p_actor_human_id)
$$;
comment on function switchboard.endpoint_of(text, uuid) is 'The endpoint of a todo among those the human owns (NULL: all); NULL when there is none. One probe an endpoint.';

create or replace function switchboard.get_todo_any_endpoint(p_id text, p_actor_human_id uuid default null) returns switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
begin
    perform acting_owner(p_actor_human_id);
    select * into v_row from todos t where t.endpoint_id = endpoint_of(p_id, p_actor_human_id) and t.id = as_uuid(p_id);
    if not found then
        perform refuse('not_found', 'there is no such todo: list_todos_any_endpoint shows what there is');
    end if;
    return with_admission(show(v_row), case when v_row.state = 'pending' then pending_admission(v_row.endpoint_id, array[v_row.queue], clock()) end);
end $$;
comment on function switchboard.get_todo_any_endpoint(text, uuid) is 'get_todo for the operator. Errors: not_found, forbidden. Reads todos.';

create or replace function switchboard.todo_history_any_endpoint(p_id text, p_actor_human_id uuid default null)
returns table (seq integer, attempt integer, owner text, claimed_at timestamptz, ended_at timestamptz, outcome text, state text, summary text)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
begin
    perform acting_owner(p_actor_human_id);
    return query select a.seq, a.attempt, a.owner, a.claimed_at, a.ended_at, a.outcome, a.state, a.summary from todo_attempts a
        where a.endpoint_id = endpoint_of(p_id, p_actor_human_id) and a.todo_id = as_uuid(p_id) order by a.seq;
end $$;
comment on function switchboard.todo_history_any_endpoint(text, uuid) is 'todo_history for the operator. Errors: forbidden, not_found (human). Reads todo_attempts.';

create or replace function switchboard.list_todos_any_endpoint(
    p_queue text default null, p_state text default null, p_limit integer default 50, p_endpoint_id text default null,
    p_before text default null, p_actor_human_id uuid default null)
returns setof switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer := check_limit(p_limit, 50, 200);
begin
    perform acting_owner(p_actor_human_id);
    perform check_state(p_state);
    return query
        select s.* from endpoints e cross join lateral todos_of(e.id, p_queue, p_state::todo_state, v_limit, as_uuid(p_before)) t
        left join lateral (select pending_admission(t.endpoint_id, array[t.queue], clock()) as states where t.state = 'pending') a on true
        cross join lateral with_admission(show(t), a.states) s
        where (p_actor_human_id is null or e.human_id = p_actor_human_id) and (p_endpoint_id is null or e.id = as_uuid(p_endpoint_id))
        order by case when p_state = 'pending' then t.created_at end, case when p_state = 'pending' then t.id end, t.id desc
        limit v_limit;
end $$;
comment on function switchboard.list_todos_any_endpoint(text, text, integer, text, text, uuid) is
'list_todos over the operator''s endpoints. p_endpoint_id: one of them, NULL: all; p_before: only todos with a smaller id (the last of the page before). Errors: invalid_argument, forbidden. Reads todos.';

create or replace function switchboard.refuse_quarantined(p_endpoint_id uuid, p_id text) returns void
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    if exists (select from todos t where t.endpoint_id = p_endpoint_id and t.id = as_uuid(p_id) and t.queue = 'quarantine') then
        perform refuse('conflict', 'the todo is held in quarantine: release it first, or, once discarded, replay its event');
    end if;
end $$;
comment on function switchboard.refuse_quarantined(uuid, text) is 'Refuses (conflict) a todo that is in quarantine, which for everybody but the operator does not exist.';

create or replace function switchboard.claim_any_endpoint(p_id text, p_lease_ttl_seconds integer default null, p_actor_human_id uuid default null) returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_owner    text := acting_owner(p_actor_human_id);
    v_endpoint uuid := endpoint_of(p_id, p_actor_human_id);
begin
    perform refuse_quarantined(v_endpoint, p_id);
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pin_policies(v_endpoint);
    end if;
    return claim_by_id(v_endpoint, p_id, operator_terms(v_endpoint, v_owner, p_lease_ttl_seconds));
end $$;
comment on function switchboard.claim_any_endpoint(text, integer, uuid) is 'claim by the operator: a claimable todo, under a lease of op:<human>, at the cost of the queue''s budget. Errors: not_found, conflict, deferred, forbidden, invalid_argument. Writes todos, todo_attempts, admission_policies, admission_windows.';

create or replace function switchboard.operator_terms(p_endpoint_id uuid, p_owner text, p_lease_ttl_seconds integer) returns switchboard.claim_terms
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_terms claim_terms;
begin
    if p_lease_ttl_seconds < 1 then
        perform refuse_argument('lease_ttl_seconds', 'must be at least 1');
    end if;
    v_terms.at := clock();
    v_terms.owner := p_owner;
    select e.id, e.stalled_queues, array(select m.queue from queue_marks m where m.endpoint_id = e.id), array(select p.queue from admission_policies p where p.endpoint_id = e.id),
           least(coalesce(p_lease_ttl_seconds, e.default_lease_seconds, s.default_lease_seconds), 86400)
    into v_terms.endpoint_id, v_terms.stalled, v_terms.queues, v_terms.budgeted, v_terms.lease_seconds
    from endpoints e, settings s where e.id = p_endpoint_id and is_active(e.revoked_at, e.expires_at, v_terms.at);
    return v_terms;
end $$;
comment on function switchboard.operator_terms(uuid, text, integer) is 'The terms of an operator''s claim: any queue the endpoint ever had. Reads endpoints, settings, queue_marks, admission_policies.';

create or replace function switchboard.heartbeat_any_endpoint(
    p_id text, p_lease_ttl_seconds integer default null, p_actor_human_id uuid default null, p_force boolean default false)
returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    return renew(endpoint_of(p_id, p_actor_human_id), p_id, acting_owner(p_actor_human_id), p_lease_ttl_seconds, null, p_force);
end $$;
comment on function switchboard.heartbeat_any_endpoint(text, integer, uuid, boolean) is 'heartbeat by the operator: extends the lease of op:<human>, with p_force anybody''s. Errors: not_found, conflict, forbidden, invalid_argument. Writes todos.';

create or replace function switchboard.finish_any_endpoint(p_id text, p_outcome text, p_result jsonb, p_actor_human_id uuid, p_force boolean) returns switchboard.todo
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_owner    text := acting_owner(p_actor_human_id);
    v_endpoint uuid := endpoint_of(p_id, p_actor_human_id);
    v_holder   text;
    v_force    boolean;
begin
    select t.owner into v_holder from todos t where t.endpoint_id = v_endpoint and t.id = as_uuid(p_id) for no key update;
    v_force := coalesce(p_force and v_holder <> v_owner, false);
    return finish(v_endpoint, p_id, case when v_force then v_holder else v_owner end, null, p_outcome, p_result, v_force);
end $$;
comment on function switchboard.finish_any_endpoint(text, text, jsonb, uuid, boolean) is 'finish by the operator; p_force overrides a holder who is somebody else.';

create or replace function switchboard.complete_any_endpoint(
    p_id text, p_result jsonb default null, p_actor_human_id uuid default null, p_force boolean default false)
returns switchboard.todo
language sql volatile security definer set search_path = switchboard, pg_temp
as $$ select finish_any_endpoint(p_id, 'done', p_result, p_actor_human_id, p_force) $$;
comment on function switchboard.complete_any_endpoint(text, jsonb, uuid, boolean) is 'complete by the operator, with p_force over a lease of somebody else. Errors: not_found, conflict, forbidden, invalid_argument. Writes todos, todo_attempts.';

create or replace function switchboard.fail_any_endpoint(
    p_id text, p_result jsonb default null, p_actor_human_id uuid default null, p_force boolean default false)
returns switchboard.todo
language sql volatile security definer set search_path = switchboard, pg_temp
as $$ select finish_any_endpoint(p_id, 'failed', p_result, p_actor_human_id, p_force) $$;
comment on function switchboard.fail_any_endpoint(text, jsonb, uuid, boolean) is 'fail by the operator, with p_force over a lease of somebody else. Errors: not_found, conflict, forbidden, invalid_argument. Writes todos, todo_attempts.';

create or replace function switchboard.release_any_endpoint(p_id text, p_actor_human_id uuid default null, p_force boolean default false) returns switchboard.todo
language sql volatile security definer set search_path = switchboard, pg_temp
as $$ select finish_any_endpoint(p_id, 'released', null, p_actor_human_id, p_force) $$;
comment on function switchboard.release_any_endpoint(text, uuid, boolean) is 'release by the operator, with p_force over a lease of somebody else. Errors: not_found, conflict, forbidden. Writes todos, todo_attempts, queue_marks.';

create or replace function switchboard.retry_any_endpoint(p_id text, p_actor_human_id uuid default null) returns switchboard.todo
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    perform acting_owner(p_actor_human_id);
    perform refuse_quarantined(endpoint_of(p_id, p_actor_human_id), p_id);
    return requeue(endpoint_of(p_id, p_actor_human_id), p_id);
end $$;
comment on function switchboard.retry_any_endpoint(text, uuid) is 'retry by the operator. Errors: not_found, conflict, forbidden. Writes todos, queue_marks; notifies todo_ready.';
